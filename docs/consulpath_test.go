package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestConsulOfTheTools: a page's commands work in a clean clone, in which `make` installs
// Consul: they name that binary, as the Makefile does, and not one that a reader may lack.
func TestConsulOfTheTools(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^CONSUL = (\S+)$`).FindSubmatch(makefile)
	if m == nil {
		t.Fatal("the Makefile does not say where Consul is")
	}
	want, found := string(m[1]), 0
	for _, path := range files(t, ".md") {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fenced := false
		for n, line := range strings.Split(string(page), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
				continue
			}
			words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "$ "))
			if len(words) == 0 || !fenced && !strings.HasPrefix(line, "    ") {
				continue
			}
			switch first := words[0]; {
			case first == want:
				found++
			case first == "consul" || strings.HasSuffix(first, "/consul"):
				t.Errorf("%s:%d: %s: write %s", path, n+1, first, want)
			}
		}
	}
	if found == 0 {
		t.Error("no page runs Consul: the test is empty")
	}
}
