package manifest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestPiecesDecodeToTheSame takes every valid object of the examples and of the cases of other tests out of its text.
func TestPiecesDecodeToTheSame(t *testing.T) {
	t.Parallel()
	objects, missing := 0, 0
	for _, dir := range []string{"../../examples", "testdata", "webhook/testdata", "../analysis/testdata"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".yaml") {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			file, _ := manifest.Decode(manifest.Options{}, path, content)
			for _, o := range file.Objects {
				if !o.Valid {
					continue
				}
				objects++
				at := manifest.Place{Line: o.Meta.Origin.Line, Column: o.Meta.Origin.Column}
				text := manifest.Pieces(content, map[manifest.Place]bool{at: true})[at]
				if text == nil {
					missing++
					continue
				}
				again, _ := manifest.Decode(manifest.Options{}, path, text)
				if len(again.Objects) != 1 || again.Objects[0].Meta.Hash != o.Meta.Hash || again.Objects[0].Meta.Origin.Line != at.Line {
					t.Errorf("%s: %s is not the same in\n%s", path, o.Meta.Key, text)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if objects < 100 || missing > objects/20 {
		t.Errorf("of %d objects, %d have no text of their own", objects, missing)
	}
}
