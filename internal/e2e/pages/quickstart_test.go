package pages

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// TestQuickstartAsItStands follows README.md "Try it in five minutes" and the quickstart, from the first block to the last,
// in a checkout of its own, while somebody calls the shop: no call fails.
func TestQuickstartAsItStands(t *testing.T) {
	ofReadme, ofPage := section(t, "README.md", "Try it in five minutes"), section(t, "examples/quickstart/README.md", "Start")
	for i := range ofReadme {
		if i >= len(ofPage) || ofReadme[i].command != ofPage[i].command || ofReadme[i].output != ofPage[i].output {
			t.Errorf("README.md and the quickstart begin with other commands: %+v, %+v", ofReadme, ofPage)
			break
		}
	}
	own := nethost.New(t)
	t.Parallel()
	own.IP("link", "set", "lo", "up")
	l := &twoHosts{Mesh: meshtest.New(t, "", nil), t: t, hosts: map[string]*host{}}
	l.addHost(own, "10.0.0.1", "debian-1")
	l.hosts["10.0.0.1"].checkOut()
	l.follow("README.md", "Try it in five minutes")
	client := l.hosts["10.0.0.1"]
	load := meshtest.StartLoad(t, 10, func(context.Context) error {
		_, err := client.shell("curl -sSf --max-time 10 -o /dev/null http://127.0.0.11:8080/")
		return err
	})
	for _, title := range []string{"Move traffic", "Refuse plaintext", "Break a file", "Kill the control plane"} {
		l.follow("examples/quickstart/README.md", title)
	}
	if r := load.Stop(); r.Failed != 0 || r.Good == 0 {
		t.Errorf("requests failed meanwhile: %+v", r)
	}
	l.follow("examples/quickstart/README.md", "Clean up")
	if out, err := client.shell("git status --porcelain examples"); err != nil || out != "" {
		t.Errorf("cleaned up, and there is still: %v\n%s", err, out)
	}
}

// checkOut makes a checkout of what the quickstart needs in the home of root, built.
func (h *host) checkOut() {
	h.t.Helper()
	root, home := envoytest.ModuleRoot(h.t), filepath.Join(h.dir, "root")
	for _, dir := range []string{"examples/quickstart/mesh", "examples/authorization"} {
		if err := os.CopyFS(filepath.Join(home, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			h.t.Fatal(err)
		}
	}
	demo, err := os.ReadFile(filepath.Join(root, "examples/quickstart/demo.py"))
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "examples/quickstart/demo.py"), demo, 0o600); err != nil {
		h.t.Fatal(err)
	}
	const made = `mkdir bin && ln -s /usr/local/bin/fairlead bin/fairlead && ln -s /usr/local/bin/app bin/quickstart-app && git init -q && git add examples && git -c user.name=a -c user.email=a@example.com commit -qm start`
	if out, err := h.shell(made); err != nil {
		h.t.Fatal(err, out)
	}
}

// recipe is what a command runs: make's, when all is built and installed, is the last line of its recipe.
func (h *host) recipe(command string) string {
	h.t.Helper()
	target, isMake := strings.CutPrefix(command, "make ")
	if !isMake {
		return command
	}
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(h.t), "Makefile"))
	if err != nil {
		h.t.Fatal(err)
	}
	_, rest, found := bytes.Cut(b, []byte("\n"+target+": "))
	recipe, _, _ := bytes.Cut(rest, []byte("\n\n"))
	last := regexp.MustCompile(`(?m)^\t@(.*)$`).FindSubmatch(recipe)
	if !found || last == nil {
		h.t.Fatal(fmt.Errorf("the Makefile has no recipe of %s that ends with a line of @", target))
	}
	return strings.NewReplacer("$(PYTHON)", "python3", "$(ENVOY)", "/usr/local/bin/envoy").Replace(string(last[1]))
}
