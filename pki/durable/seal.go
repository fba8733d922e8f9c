package durable

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Seal writes a value as JSON behind a line with the hash of it, 0600, unless it
// would be longer than limit bytes.
func Seal(path string, v any, limit int64) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	head := sealOf(body)
	if int64(len(head)+len(body)) > limit {
		return fmt.Errorf("writing %q: longer than %d bytes", path, limit)
	}
	return WriteBuffers(OS{}, path, [][]byte{head, body}, 0o600)
}

// Unseal reads what [Seal] wrote, of at most limit bytes.
func Unseal(path string, v any, limit int64) error {
	data, err := ReadFile(path, limit)
	if err != nil {
		return err
	}
	if err := OpenSeal(data, v); err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	return nil
}

// OpenSeal is Unseal of what was read already.
func OpenSeal(data []byte, v any) error {
	end := bytes.IndexByte(data, '\n') + 1
	if head, body := data[:end], data[end:]; end == 0 || !bytes.Equal(head, sealOf(body)) {
		return errors.New("damaged: the hash is not that of the content")
	}
	return json.Unmarshal(data[end:], v)
}

// sealOf is the line before a body.
func sealOf(body []byte) []byte {
	sum := sha256.Sum256(body)
	return []byte("sha256:" + hex.EncodeToString(sum[:]) + "\n")
}
