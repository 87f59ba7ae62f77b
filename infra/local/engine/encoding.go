package engine

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// decodeBody undoes Content-Encoding and, when framed, ClickHouse's native
// compression frames inside it.
func decodeBody(r *http.Request, framed bool) (io.Reader, error) {
	raw := &stickyReader{source: r.Body}
	body, err := decompressor(r.Header.Get("Content-Encoding"), raw)
	if err != nil {
		return nil, err
	}
	body = &wholeReader{decoder: body, raw: raw}
	if framed {
		body = &frameReader{source: body}
	}
	return body, nil
}

// stickyReader repeats its first error: net/http says once that a body is
// shorter than its Content-Length and calls it ended from then on, and the zstd
// decoder takes the first of the two for the end of its frames.
type stickyReader struct {
	source io.Reader
	err    error
}

func (s *stickyReader) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.source.Read(p)
	s.err = err
	return n, err
}

// wholeReader ends when its decoder and the raw body have both ended: deflate
// and br know their own end and would not notice that the request had none.
type wholeReader struct{ decoder, raw io.Reader }

func (w *wholeReader) Read(p []byte) (int, error) {
	n, err := w.decoder.Read(p)
	if errors.Is(err, io.EOF) {
		if _, err := io.Copy(io.Discard, w.raw); err != nil {
			return n, err
		}
	}
	return n, err
}

func decompressor(encoding string, body io.Reader) (io.Reader, error) {
	switch encoding {
	case "", "identity":
		return body, nil
	case "gzip":
		return wrapDecoder(gzip.NewReader(body))
	case "deflate":
		return wrapDecoder(zlib.NewReader(body))
	case "zstd":
		return wrapDecoder(zstd.NewReader(body, zstd.WithDecoderConcurrency(1)))
	case "br":
		return brotli.NewReader(body), nil
	case "lz4":
		return lz4.NewReader(body), nil
	}
	return nil, &exception{codeNotImplemented, "NOT_IMPLEMENTED", "Unknown Content-Encoding " + encoding}
}

func wrapDecoder[R io.Reader](r R, err error) (io.Reader, error) {
	if err != nil {
		return nil, &exception{codeCannotReadAllData, "CANNOT_READ_ALL_DATA", "Cannot decompress the body: " + err.Error()}
	}
	return r, nil
}

// Layout of a native frame: checksum, method, size with header, size of data.
const (
	frameHeader   = 16 + 1 + 4 + 4
	frameChecksum = 16
	frameSizeAt   = 17
	frameMax      = 128 << 20
)

// frameReader reads native compression frames. It hands whole frames to
// ch-go's decoder, because that one takes a body cut behind a frame's header
// for one that ended.
type frameReader struct {
	source  io.Reader
	frame   bytes.Reader
	decoder *compress.Reader
	left    int
}

func (f *frameReader) Read(p []byte) (int, error) {
	for f.left == 0 {
		if err := f.nextFrame(); err != nil {
			return 0, err
		}
	}
	n, err := f.decoder.Read(p[:min(len(p), f.left)])
	f.left -= n
	if err != nil {
		return n, fmt.Errorf("decompress a frame of the body: %w", notEOF(err))
	}
	return n, nil
}

// nextFrame returns io.EOF only between two frames.
func (f *frameReader) nextFrame() error {
	header := make([]byte, frameHeader)
	if _, err := io.ReadFull(f.source, header); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint32(header[frameSizeAt:])
	data := binary.LittleEndian.Uint32(header[frameSizeAt+4:])
	if size < frameHeader-frameChecksum || size > frameMax || data > frameMax {
		return &exception{codeCannotReadAllData, "CANNOT_READ_ALL_DATA", "The body holds no compressed frame where one should be"}
	}
	frame := make([]byte, frameChecksum+size)
	copy(frame, header)
	if _, err := io.ReadFull(f.source, frame[frameHeader:]); err != nil {
		return fmt.Errorf("read a frame of the body: %w", notEOF(err))
	}
	f.frame.Reset(frame)
	if f.decoder == nil {
		f.decoder = compress.NewReader(&f.frame)
	}
	f.left = int(data)
	return nil
}

// notEOF turns an end where none may be into io.ErrUnexpectedEOF.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// frames compresses data into native frames.
func frames(data []byte, method string) ([]byte, error) {
	m := compress.LZ4
	switch strings.ToUpper(method) {
	case "ZSTD":
		m = compress.ZSTD
	case "NONE":
		m = compress.None
	case "LZ4HC":
		m = compress.LZ4HC
	}
	w := compress.NewWriter(compress.LevelZero, m)
	var out []byte
	for len(data) > 0 {
		n := min(len(data), 1<<20) // max_compress_block_size
		if err := w.Compress(data[:n]); err != nil {
			return nil, fmt.Errorf("compress the answer: %w", err)
		}
		out, data = append(out, w.Data...), data[n:]
	}
	return out, nil
}

// acceptedEncoding picks the answer's encoding in the server's own order
// (src/Server/HTTPHandler.cpp), "" for none.
func acceptedEncoding(accept string) string {
	for _, encoding := range []string{"br", "gzip", "deflate", "zstd", "lz4"} {
		for offer := range strings.SplitSeq(accept, ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(offer), ";")
			if name == encoding {
				return encoding
			}
		}
	}
	return ""
}

func encode(data []byte, encoding string) ([]byte, error) {
	var out bytes.Buffer
	var w io.WriteCloser
	switch encoding {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "deflate":
		w = zlib.NewWriter(&out)
	case "br":
		w = brotli.NewWriterLevel(&out, 3) // http_zlib_compression_level's default
	case "lz4":
		w = lz4.NewWriter(&out)
	case "zstd":
		z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("compress the answer: %w", err)
		}
		w = z
	default:
		return data, nil
	}
	if _, err := w.Write(data); err != nil {
		return nil, fmt.Errorf("compress the answer: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress the answer: %w", err)
	}
	return out.Bytes(), nil
}
