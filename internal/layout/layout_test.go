package layout

import (
	"errors"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

const root = "../.."

// source is one Go file of the project.
type source struct {
	dir, path string
	test      bool
	imports   []string // of this project, as directories
	comment   bool     // has a package comment
	lines     int
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, content, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		s := source{
			dir: filepath.ToSlash(filepath.Dir(rel)), path: rel, test: strings.HasSuffix(name, "_test.go"),
			comment: f.Doc != nil, lines: strings.Count(string(content), "\n"),
		}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if dir, ok := strings.CutPrefix(p, Module+"/"); ok {
				s.imports = append(s.imports, dir)
			}
		}
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRooms(t *testing.T) {
	t.Parallel()
	rooms := Rooms()
	seen := map[string]bool{}
	for _, s := range sources(t) {
		seen[s.dir] = true
		room, ok := rooms[s.dir]
		if !ok {
			t.Errorf("%s: the package %q is not in the plan (internal/layout)", s.path, s.dir)
			continue
		}
		if s.test {
			continue
		}
		for _, i := range s.imports {
			if !allowed(room.MayImport, i) {
				t.Errorf("%s imports %q, which its room may not: %v", s.path, i, room.MayImport)
			}
		}
	}
	for dir := range rooms {
		if !seen[dir] {
			t.Errorf("the plan has a room %q that no file is in", dir)
		}
	}
}

func allowed(may []string, dir string) bool {
	return slices.ContainsFunc(may, func(m string) bool {
		base, tree := strings.CutSuffix(m, "/...")
		return m == "*" || m == dir || tree && (dir == base || strings.HasPrefix(dir, base+"/"))
	})
}

func TestOnePackageComment(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		count[s.dir] += 0
		if s.comment {
			count[s.dir]++
		}
	}
	for dir, n := range count {
		if n != 1 {
			t.Errorf("%s has %d package comments, want 1", dir, n)
		}
	}
}

func TestFileSize(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.lines > 500 && !s.test {
			t.Errorf("%s has %d lines: a room inside it asks for a file of its own (500)", s.path, s.lines)
		}
	}
}

// TestDependencies wants a line for every direct dependency in the decision
// record that justifies them.
func TestDependencies(t *testing.T) {
	t.Parallel()
	mod := module(t, "go.mod")
	if len(mod.Replace) > 0 {
		t.Error("go.mod has a replace directive: nobody who imports us would have it")
	}
	record, err := os.ReadFile(filepath.Join(root, "docs/adr/0001-dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if !r.Indirect && !strings.Contains(string(record), "`"+r.Mod.Path+"`") {
			t.Errorf("docs/adr/0001-dependencies.md does not say why %s is here", r.Mod.Path)
		}
	}
}

// TestModulesOfBenchUseOurVersions: what is measured is what the binary is made of.
func TestModulesOfBenchUseOurVersions(t *testing.T) {
	t.Parallel()
	ours := map[string]string{}
	for _, r := range module(t, "go.mod").Require {
		ours[r.Mod.Path] = r.Mod.Version
	}
	nested, err := filepath.Glob(filepath.Join(root, "bench/*/go.mod"))
	if err != nil || len(nested) == 0 {
		t.Fatalf("no module below bench: %v", err)
	}
	for _, path := range nested {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range module(t, rel).Require {
			if want, ok := ours[r.Mod.Path]; ok && r.Mod.Version != want {
				t.Errorf("%s asks for %s %s, the binary is made with %s: go get it there", rel, r.Mod.Path, r.Mod.Version, want)
			}
		}
	}
}

// module reads a go.mod, by its path below the root.
func module(t *testing.T, path string) *modfile.File {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(path, content, nil)
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

// maxFile is how large a file of the project may be: nobody clones a binary that
// somebody committed by mistake. Golden files may be larger.
const maxFile = 1 << 20

// TestNoLargeFiles asks git which files are the project's, or would be with the next
// commit.
func TestNoLargeFiles(t *testing.T) {
	t.Parallel()
	for _, path := range large(t, tracked(t)) {
		t.Errorf("%s is larger than %d bytes: what is built or measured is not committed", path, maxFile)
	}
	dir := t.TempDir()
	for name, size := range map[string]int{"small": maxFile, "large": maxFile + 1} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := large(t, []string{filepath.Join(dir, "small"), filepath.Join(dir, "large"), filepath.Join(dir, "gone")}); len(got) != 1 {
		t.Errorf("of a small and a large file %v are too large", got)
	}
}

func large(t *testing.T, paths []string) []string {
	t.Helper()
	var out []string
	for _, path := range paths {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // taken out, and not committed yet
		case err != nil:
			t.Fatal(err)
		case info.Mode().IsRegular() && info.Size() > maxFile && !strings.Contains(filepath.ToSlash(path), "/testdata/"):
			out = append(out, path)
		}
	}
	return out
}

// present are all files but those of tools and builds.
func present(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != root && (name == ".git" || name == ".tools" || name == "bin"):
			return filepath.SkipDir
		case !d.IsDir():
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tracked(t *testing.T) []string {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Logf("git does not tell which files are the project's, all are looked at: %v", err)
		return present(t)
	}
	var out []string
	for path := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		out = append(out, filepath.Join(root, path))
	}
	return out
}
