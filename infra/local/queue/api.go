package queue

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The limits of the service.
const (
	maxBatch       = 10
	maxBytes       = 1 << 20 // of a message and of all messages of a batch
	maxReceive     = 10
	maxWaitSeconds = 20
	maxAttributes  = 10
)

// apiError is an error as the protocol knows it.
type apiError struct {
	code, message string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func refuse(code, format string, args ...any) error {
	return &apiError{code, fmt.Sprintf(format, args...)}
}

// request holds the parameters of every call: each uses a few.
type request struct {
	QueueURL                    string `json:"QueueUrl"`
	QueueName, QueueNamePrefix  string
	Attributes                  map[string]string
	AttributeNames              []string
	MessageAttributeNames       []string
	MessageSystemAttributeNames []string
	MaxNumberOfMessages         *int
	VisibilityTimeout           *int
	WaitTimeSeconds             int
	ReceiptHandle               string
	Entries                     []entry
	entry                       // of the calls for one message
}

// entry is one message to send, or one to delete, of a batch.
type entry struct {
	ID                     string `json:"Id"`
	MessageBody            string
	DelaySeconds           int
	MessageAttributes      map[string]attribute
	MessageDeduplicationID string `json:"MessageDeduplicationId"`
	MessageGroupID         string `json:"MessageGroupId"`
	ReceiptHandle          string
}

type attribute struct {
	DataType    string
	StringValue *string `json:",omitempty"`
	BinaryValue []byte  `json:",omitempty"`
}

type object = map[string]any

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	var req request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4*maxBytes)).Decode(&req); err != nil {
		answer(w, nil, refuse("SerializationException", "%v", err))
		return
	}
	call := Call{Action: action, Queue: cmp.Or(req.QueueName, queueName(req.QueueURL))}
	if action == "SendMessage" {
		call.Bodies = []string{req.MessageBody}
	}
	for _, e := range req.Entries {
		call.Bodies = append(call.Bodies, e.MessageBody)
	}
	var fault Fault
	if s.control != nil {
		fault = s.control(call)
	}
	if fault.Refuse != "" {
		answer(w, nil, refuse(fault.Refuse, "injected"))
		return
	}
	out, err := s.act(r, action, call.Queue, &req, fault)
	if fault.DropAnswer {
		panic(http.ErrAbortHandler) // closes the connection
	}
	answer(w, out, err)
}

func answer(w http.ResponseWriter, out any, err error) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if err != nil {
		var api *apiError
		status := http.StatusBadRequest
		if !errors.As(err, &api) {
			api, status = &apiError{"InternalFailure", err.Error()}, http.StatusInternalServerError
		}
		w.WriteHeader(status)
		out = object{"__type": "com.amazonaws.sqs#" + api.code, "message": api.message}
	}
	if out == nil {
		out = object{}
	}
	_ = json.NewEncoder(w).Encode(out) // the client is gone: there is nobody to tell
}

func (s *Server) act(r *http.Request, action, name string, req *request, fault Fault) (any, error) {
	switch action {
	case "CreateQueue":
		if err := s.store.create(name, req.Attributes); err != nil {
			return nil, err
		}
		return object{"QueueUrl": s.url(name)}, nil
	case "ListQueues":
		urls := []string{}
		for _, n := range s.store.names() {
			if strings.HasPrefix(n, req.QueueNamePrefix) {
				urls = append(urls, s.url(n))
			}
		}
		return object{"QueueUrls": urls}, nil
	}
	if !s.store.exists(name) {
		return nil, refuse("QueueDoesNotExist", "The specified queue %s does not exist.", name)
	}
	switch action {
	case "GetQueueUrl":
		return object{"QueueUrl": s.url(name)}, nil
	case "GetQueueAttributes":
		return object{"Attributes": s.attributes(name)}, nil
	case "PurgeQueue":
		return nil, s.store.purge(name)
	case "SendMessage":
		return s.send(name, req.entry)
	case "SendMessageBatch":
		return s.sendBatch(name, req.Entries, fault)
	case "ReceiveMessage":
		return s.receive(r, name, req)
	case "DeleteMessage":
		return nil, s.store.remove(name, cmp.Or(req.ReceiptHandle, req.entry.ReceiptHandle))
	case "ChangeMessageVisibility":
		seconds := 0
		if req.VisibilityTimeout != nil {
			seconds = *req.VisibilityTimeout
		}
		return nil, s.store.hide(name, cmp.Or(req.ReceiptHandle, req.entry.ReceiptHandle), time.Duration(seconds)*time.Second)
	case "DeleteMessageBatch":
		return s.deleteBatch(name, req.Entries, fault)
	}
	return nil, refuse("UnsupportedOperation", "The emulator does not know %q.", action)
}

func (s *Server) attributes(name string) map[string]string {
	c := s.store.count(name)
	return map[string]string{
		"ApproximateNumberOfMessages":           strconv.Itoa(c.visible),
		"ApproximateNumberOfMessagesNotVisible": strconv.Itoa(c.received),
		"ApproximateNumberOfMessagesDelayed":    strconv.Itoa(c.delayed),
		"QueueArn":                              "arn:aws:sqs:" + Region + ":" + account + ":" + name,
		"VisibilityTimeout":                     strconv.Itoa(int(s.store.visibility(name) / time.Second)),
	}
}

func (s *Server) send(name string, e entry) (any, error) {
	if err := check(name, e); err != nil {
		return nil, err
	}
	ids, err := s.store.add(name, []entry{e})
	if err != nil {
		return nil, err
	}
	return sent(e, ids[0]), nil
}

func (s *Server) sendBatch(name string, entries []entry, fault Fault) (any, error) {
	if err := checkBatch(entries); err != nil {
		return nil, err
	}
	size := 0
	for _, e := range entries {
		size += e.size()
	}
	if size > maxBytes {
		return nil, refuse("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxBytes, size)
	}
	failed, good := []object{}, []entry{}
	for i, e := range entries {
		if slices.Contains(fault.FailEntries, i) {
			failed = append(failed, failure(e, "InternalError", "injected", false))
			continue
		}
		var api *apiError
		if err := check(name, e); errors.As(err, &api) {
			failed = append(failed, failure(e, api.code, api.message, true))
			continue
		}
		good = append(good, e)
	}
	ids, err := s.store.add(name, good)
	if err != nil {
		return nil, err
	}
	successful := []object{}
	for i, e := range good {
		successful = append(successful, sent(e, ids[i]))
	}
	return object{"Successful": successful, "Failed": failed}, nil
}

func (s *Server) deleteBatch(name string, entries []entry, fault Fault) (any, error) {
	if err := checkBatch(entries); err != nil {
		return nil, err
	}
	successful, failed := []object{}, []object{}
	for i, e := range entries {
		if slices.Contains(fault.FailEntries, i) {
			failed = append(failed, failure(e, "InternalError", "injected", false))
			continue
		}
		if err := s.store.remove(name, e.ReceiptHandle); err != nil {
			var api *apiError
			if !errors.As(err, &api) {
				return nil, err
			}
			failed = append(failed, failure(e, api.code, api.message, true))
			continue
		}
		successful = append(successful, object{"Id": e.ID})
	}
	return object{"Successful": successful, "Failed": failed}, nil
}

func (s *Server) receive(r *http.Request, name string, req *request) (any, error) {
	most := 1
	if req.MaxNumberOfMessages != nil {
		most = *req.MaxNumberOfMessages
	}
	if most < 1 || most > maxReceive || req.WaitTimeSeconds < 0 || req.WaitTimeSeconds > maxWaitSeconds {
		return nil, refuse("InvalidParameterValue", "MaxNumberOfMessages is %d, WaitTimeSeconds %d.", most, req.WaitTimeSeconds)
	}
	visibility := s.store.visibility(name)
	if req.VisibilityTimeout != nil {
		visibility = time.Duration(*req.VisibilityTimeout) * time.Second
	}
	got := s.store.take(r.Context(), name, most, visibility, time.Duration(req.WaitTimeSeconds)*time.Second)
	messages := []object{}
	for _, m := range got {
		out := object{"MessageId": m.ID, "ReceiptHandle": m.receipt(), "Body": m.Body, "MD5OfBody": md5Body(m.Body)}
		attributes := map[string]attribute{}
		for n, a := range m.Attributes {
			if wanted(n, req.MessageAttributeNames) {
				attributes[n] = a
			}
		}
		if len(attributes) > 0 {
			out["MessageAttributes"], out["MD5OfMessageAttributes"] = attributes, md5Attributes(attributes)
		}
		system := map[string]string{}
		for n, v := range m.system() {
			if wanted(n, append(req.AttributeNames, req.MessageSystemAttributeNames...)) {
				system[n] = v
			}
		}
		if len(system) > 0 {
			out["Attributes"] = system
		}
		messages = append(messages, out)
	}
	return object{"Messages": messages}, nil
}

// wanted knows the service's patterns: a name, "All", ".*" and "prefix.*".
func wanted(name string, patterns []string) bool {
	for _, p := range patterns {
		prefix, open := strings.CutSuffix(p, ".*")
		if p == "All" || p == name || (open && strings.HasPrefix(name, prefix)) {
			return true
		}
	}
	return false
}

func sent(e entry, id string) object {
	out := object{"MessageId": id, "MD5OfMessageBody": md5Body(e.MessageBody)}
	if e.ID != "" {
		out["Id"] = e.ID
	}
	if len(e.MessageAttributes) > 0 {
		out["MD5OfMessageAttributes"] = md5Attributes(e.MessageAttributes)
	}
	return out
}

func failure(e entry, code, message string, senderFault bool) object {
	return object{"Id": e.ID, "Code": code, "Message": message, "SenderFault": senderFault}
}

func checkBatch(entries []entry) error {
	if len(entries) == 0 {
		return refuse("EmptyBatchRequest", "There should be at least one entry in the request.")
	}
	if len(entries) > maxBatch {
		return refuse("TooManyEntriesInBatchRequest", "Maximum number of entries per request are %d. You have sent %d.", maxBatch, len(entries))
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if e.ID == "" || len(e.ID) > 80 || strings.Trim(e.ID, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			return refuse("InvalidBatchEntryId", "A batch entry id is %q.", e.ID)
		}
		if seen[e.ID] {
			return refuse("BatchEntryIdsNotDistinct", "Id %s repeated.", e.ID)
		}
		seen[e.ID] = true
	}
	return nil
}

func check(queue string, e entry) error {
	if e.MessageBody == "" {
		return refuse("MissingParameter", "The request must contain the parameter MessageBody.")
	}
	if !textOnly(e.MessageBody) {
		return refuse("InvalidMessageContents", "The message contains characters outside the allowed set.")
	}
	if n := e.size(); n > maxBytes {
		return refuse("InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than %d bytes, is %d.", maxBytes, n)
	}
	if len(e.MessageAttributes) > maxAttributes {
		return refuse("InvalidParameterValue", "Number of message attributes [%d] exceeds the allowed maximum [%d].", len(e.MessageAttributes), maxAttributes)
	}
	for name, a := range e.MessageAttributes {
		kind, _, _ := strings.Cut(a.DataType, ".")
		text := kind == "String" || kind == "Number"
		if !text && kind != "Binary" || text && (a.StringValue == nil || *a.StringValue == "" || !textOnly(*a.StringValue)) || !text && len(a.BinaryValue) == 0 {
			return refuse("InvalidParameterValue", "The message attribute %q must contain a non-empty value of type String, Number or Binary.", name)
		}
	}
	if fifo(queue) && (e.MessageGroupID == "" || e.MessageDeduplicationID == "" || len(e.MessageGroupID) > 128 || len(e.MessageDeduplicationID) > 128) {
		return refuse("MissingParameter", "A FIFO queue needs MessageGroupId and MessageDeduplicationId of at most 128 characters.")
	}
	return nil
}

// textOnly reports whether s has only the characters that SQS takes: those of
// XML 1.0. (A JSON body cannot hold lone surrogates.)
func textOnly(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	})
}

// size is what counts against the limits: body and attributes.
func (e entry) size() int {
	n := len(e.MessageBody)
	for name, a := range e.MessageAttributes {
		n += len(name) + len(a.DataType) + len(a.BinaryValue)
		if a.StringValue != nil {
			n += len(*a.StringValue)
		}
	}
	return n
}
