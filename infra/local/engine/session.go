package engine

import (
	"net/url"
	"strconv"
	"sync"
	"time"

	"oncehouse/infra/local/engine/chdb"
)

// The server's default_session_timeout and max_session_timeout.
const (
	defaultSessionTimeout = 60 * time.Second
	maxSessionTimeout     = 3600 * time.Second
)

// sessionRequest is what a request says of its session; id "" means none.
type sessionRequest struct {
	id           string
	timeout      time.Duration
	check, close bool
}

func parseSession(options url.Values) (sessionRequest, error) {
	out := sessionRequest{id: options.Get("session_id"), timeout: defaultSessionTimeout,
		check: options.Get("session_check") == "1", close: options.Get("close_session") == "1"}
	text := options.Get("session_timeout")
	if text == "" {
		return out, nil
	}
	seconds, err := strconv.ParseUint(text, 10, 32)
	out.timeout = time.Duration(seconds) * time.Second
	if err != nil || out.timeout > maxSessionTimeout {
		return out, &exception{codeInvalidSessionTimeout, "INVALID_SESSION_TIMEOUT", "Invalid session timeout: '" + text + "'"}
	}
	return out, nil
}

// sessions keeps the connections of sessions: one each, used by one request at
// a time, closed when it was not used for its time-out.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
	open func() (*chdb.Conn, error)
}

type session struct {
	conn   *chdb.Conn
	busy   bool
	expiry *time.Timer
}

// acquire locks a session for one request. Error: an exception, or the engine
// refuses a connection.
func (s *sessions) acquire(req sessionRequest, user string) (*chdb.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := user + "\x00" + req.id
	found := s.byID[key]
	if found == nil {
		if req.check {
			return nil, &exception{codeSessionNotFound, "SESSION_NOT_FOUND", "Session " + req.id + " not found"}
		}
		conn, err := s.open()
		if err != nil {
			return nil, err
		}
		found = &session{conn: conn}
		s.byID[key] = found
	}
	if found.busy {
		return nil, &exception{codeSessionIsLocked, "SESSION_IS_LOCKED", "Session " + req.id + " is locked by a concurrent client"}
	}
	found.busy = true
	if found.expiry != nil {
		found.expiry.Stop()
	}
	return found.conn, nil
}

// release gives a session back and starts its time-out.
func (s *sessions) release(req sessionRequest, user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := user + "\x00" + req.id
	found := s.byID[key]
	found.busy = false
	if req.close {
		s.drop(key, found)
		return
	}
	found.expiry = time.AfterFunc(req.timeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.byID[key] == found && !found.busy {
			s.drop(key, found)
		}
	})
}

func (s *sessions) drop(key string, found *session) {
	delete(s.byID, key)
	found.conn.Close()
}

// close ends all sessions but those whose request is still running: its
// connection cannot be closed under it.
func (s *sessions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, found := range s.byID {
		if found.busy {
			continue
		}
		found.expiry.Stop()
		s.drop(key, found)
	}
}
