package artifact

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// bootstrap is the name that the runtime looks for.
const bootstrap = "bootstrap"

// Made is a function that can be deployed.
type Made struct {
	Source
	// Binary and Zip are paths; in the zip is the binary and nothing else.
	Binary, Zip        string
	BinaryBytes, Bytes int64
	// CodeSHA256 of the zip, as Lambda's API has it.
	CodeSHA256 string
	// GoVersion compiled it: another one makes other bytes.
	GoVersion string
}

// Make writes <dir>/<function>-<arch>/bootstrap and <dir>/<function>-<arch>.zip.
func Make(ctx context.Context, src Source, dir string) (Made, error) {
	base := filepath.Join(dir, src.Function+"-"+src.Arch)
	m := Made{Source: src, Binary: filepath.Join(base, bootstrap), Zip: base + ".zip"}
	if err := os.MkdirAll(base, 0o750); err != nil {
		return m, fmt.Errorf("build %s: %w", src.Function, err)
	}
	if err := Compile(ctx, src, m.Binary); err != nil {
		return m, err
	}
	by, err := buildinfo.ReadFile(m.Binary)
	if err != nil {
		return m, fmt.Errorf("look at the executable: %w", err)
	}
	m.GoVersion = by.GoVersion
	info, err := os.Stat(m.Binary)
	if err != nil {
		return m, fmt.Errorf("look at the executable: %w", err)
	}
	m.BinaryBytes = info.Size()
	if err := pack(m.Binary, m.Zip); err != nil {
		return m, err
	}
	m.Bytes, m.CodeSHA256, err = sum(m.Zip)
	return m, err
}

// epoch is the first moment that a zip can name. Any fixed one would do.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// pack makes the zip. Its one entry has a fixed time and mode, so that the bytes
// depend on the executable only. A zip that is cut short never has the name.
func pack(binary, path string) error {
	out, err := os.CreateTemp(filepath.Dir(path), ".zip-")
	if err != nil {
		return fmt.Errorf("pack %s: %w", path, err)
	}
	err = errors.Join(write(out, binary), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pack %s: %w", path, err), os.Remove(out.Name()))
	}
	return nil
}

func write(out io.Writer, binary string) error {
	in, err := os.Open(binary)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	w := zip.NewWriter(out)
	header := &zip.FileHeader{Name: bootstrap, Method: zip.Deflate, Modified: epoch}
	header.SetMode(0o755) // Lambda runs it as another user than its owner
	entry, err := w.CreateHeader(header)
	if err != nil {
		return err
	}
	if _, err := io.Copy(entry, in); err != nil {
		return err
	}
	return w.Close()
}

// sum is a file's size and hash.
func sum(path string) (int64, string, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, "", fmt.Errorf("hash the zip: %w", err)
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	n, err := io.Copy(hash, file)
	if err != nil {
		return 0, "", fmt.Errorf("hash the zip: %w", err)
	}
	return n, base64.StdEncoding.EncodeToString(hash.Sum(nil)), nil
}
