package durable_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pki/durable"
)

// TestErrorsSayTheSame: two attempts fail in the same words, so that what lasts is known as one thing.
func TestErrorsSayTheSame(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "missing", "file")
	first := durable.WriteFile(durable.OS{}, path, []byte("x"), 0o600)
	second := durable.WriteFile(durable.OS{}, path, []byte("x"), 0o600)
	if !errors.Is(first, fs.ErrNotExist) || first.Error() != second.Error() || strings.Contains(first.Error(), ".tmp-") {
		t.Errorf("%v, then %v", first, second)
	}
}
