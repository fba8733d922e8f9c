package files

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/manifest"
)

// program is that of tools/editors, or of the system.
func program(t *testing.T, name string) string {
	t.Helper()
	own := filepath.Join(envoytest.ModuleRoot(t), ".tools", "editors-9.0.1378", name)
	if _, err := os.Stat(own); err == nil {
		return own
	}
	path, err := exec.LookPath(name)
	if err != nil {
		envoytest.Missing(t, "%s is not installed: make tools", name)
	}
	return path
}

// waysToEdit are commands that remove the second of two policies from $F, lines 6 to 10; $N is the new file. The
// first word of each is the program.
func waysToEdit() map[string]string {
	return map[string]string{
		"sed":          `sed -i 6,10d "$F"`,
		"perl":         `perl -i -ne 'print unless 6..10' "$F"`,
		"patch":        `patch -s "$F" "$N.diff"`,
		"mv":           `mv "$N" "$F"`,
		"vim":          `vim -u NONE -es -c 6,10d -c wq "$F"`,
		"vim_backup":   `vim -u NONE -es -c 'set backup backupcopy=no' -c 6,10d -c wq "$F"`,
		"ed":           `ed -s "$F" < "$N.ed"`,
		"git_checkout": `git -C "$D" -c user.name=x -c user.email=x@example.com checkout -q HEAD~1 -- a.yaml`,
		"tar":          `tar -C "$D" -xf "$N.tar"`,
		"install":      `install -m 644 "$N" "$F"`,
		"cp":           `cp "$N" "$F"`,
		"redirection":  `cat "$N" > "$F"`,
		"tee":          `tee "$F" < "$N" > /dev/null`,
		"scp":          `scp -q "$N" "$F"`,
		"dd":           `dd if="$N" of="$F" bs=64 status=none`,
		"rm_and_cp":    `rm "$F" && cp "$N" "$F"`,
		"in_pieces":    `head -c 100 "$N" > "$F"; sleep 0.4; tail -c +101 "$N" >> "$F"`,
	}
}

// TestWaysToEdit removes a policy by each way in which people edit files: that is in force within 12 s.
func TestWaysToEdit(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	before, after := denies("one", "two")+manifest.EndMark+"\n", denies("one")+manifest.EndMark+"\n"
	for name, command := range waysToEdit() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			word, arguments, _ := strings.Cut(command, " ")
			if !strings.HasPrefix(word, "rm") && word != "head" {
				command = program(t, word) + " " + arguments
			}
			dir, aside := t.TempDir(), t.TempDir()
			path := filepath.Join(dir, "a.yaml")
			prepare := `cd "$D"; printf '6,10d\nw\nq\n' > "$N.ed"; cp "$N" a.yaml; tar -cf "$N.tar" a.yaml
				git init -q . && git add a.yaml && git -c user.name=x -c user.email=x@example.com commit -qm one
				cp "$N.old" a.yaml; git add a.yaml && git -c user.name=x -c user.email=x@example.com commit -qm two
				diff -u "$N.old" "$N" > "$N.diff" || true`
			write(t, aside, map[string]string{"new.yaml": after, "new.yaml.old": before})
			shell := func(script string) {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
				cmd.Env = append(os.Environ(), "D="+dir, "F="+path, "N="+filepath.Join(aside, "new.yaml"), "HOME="+aside, "TERM=dumb")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", script, err, out)
				}
			}
			shell(prepare)
			r := startReal(t, Config{Roots: []Root{{Path: dir}}})
			r.policies("one", "two")
			stall := stalls(t)
			shell(command)
			began := time.Now()
			if content, err := os.ReadFile(path); err != nil || string(content) != after {
				t.Fatalf("the file became %q: %v", content, err)
			}
			r.policies("one")
			took := time.Since(began)
			t.Logf("in force after %s", took.Round(10*time.Millisecond))
			if most := 12*time.Second + 10*stall(); took > most {
				t.Errorf("in force after %s, want at most %s", took, most)
			}
		})
	}
}

// stalls measures how late this process is, until the returned function is called.
func stalls(t *testing.T) func() time.Duration {
	t.Helper()
	stop, result := make(chan struct{}), make(chan time.Duration)
	go func() {
		var b beat
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.now()
			case <-stop:
				result <- b.stall
				return
			}
		}
	}()
	t.Cleanup(func() {
		select {
		case <-stop:
		default:
			close(stop)
			<-result
		}
	})
	return func() time.Duration {
		close(stop)
		return <-result
	}
}

// TestFiftyCuts cuts 50 files in place, each at another byte, and starts the server's source again: every policy is in
// force in every fragment, also in those of the start.
func TestFiftyCuts(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	rng := rand.New(rand.NewPCG(50, 31))
	files, want := map[string]string{}, []string{}
	for i := range 50 {
		one, two := fmt.Sprintf("p%02d-a", i), fmt.Sprintf("p%02d-b", i)
		files[fmt.Sprintf("f%02d.yaml", i)] = "# é\n" + denies(one, two) + manifest.EndMark + "\n"
		want = append(want, one, two)
	}
	dir := treeOf(t, files)
	cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir(), LossAfter: 2 * time.Second}
	all := func(r *running) {
		t.Helper()
		r.policies(want...)
		for i, f := range r.allSent() {
			var got []string
			for _, p := range f.AuthorizationPolicies {
				got = append(got, p.Name)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("fragment %d has %d policies, want %d", i, len(got), len(want))
			}
		}
	}
	broken := func(s *Status) bool {
		paths := map[string]bool{}
		for _, f := range s.Faults {
			if f.Severity == manifest.Error {
				paths[f.Origin.Path] = true
			}
		}
		return len(paths) == len(files)
	}
	r := startReal(t, cfg)
	all(r)
	for name, content := range files {
		check(t, os.Truncate(filepath.Join(dir, name), rng.Int64N(int64(len(content)-len("...\n")+1))))
	}
	for range 2 {
		r.awaitStatus("every file is broken", broken)
		r.stays(stillForLoss + cfg.LossAfter)
		all(r)
		r.Stop()
		r = startReal(t, cfg)
		all(r)
	}
	for name, content := range files {
		replace(t, filepath.Join(dir, name), content)
	}
	r.awaitStatus("whole", func(s *Status) bool { return len(s.Kept) == 0 && !broken(s) && !r.hasFault("error [") })
	all(r)
}
