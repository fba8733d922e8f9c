package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead/fairlead/pki/durable"
)

func TestSeal(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.json")
	var got map[string]int
	if err := durable.Unseal(path, &got, 1000); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	if err := durable.Seal(path, map[string]int{"a": 1}, 1000); err != nil {
		t.Fatal(err)
	}
	if err := durable.Unseal(path, &got, 1000); err != nil || got["a"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if durable.Seal(path, map[string]int{"a": 2}, 50) == nil || durable.Unseal(path, &got, 50) == nil {
		t.Error("there is no limit")
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		damaged := append([]byte(nil), whole...)
		damaged[i] ^= 1
		if durable.OpenSeal(damaged, &got) == nil || durable.OpenSeal(whole[:i], &got) == nil {
			t.Errorf("damage at %d is not seen", i)
		}
	}
}
