package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestCommandsOnPages: each command on a page of the documentation exists, with each of its flags.
func TestCommandsOnPages(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md" || d.Name() == "CHANGELOG.md": // it has names of then
			return nil
		}
		content, err := os.ReadFile(path)
		for _, line := range commandsOn(string(content)) {
			found++
			for _, wrong := range wrongIn(line) {
				t.Errorf("%s: `fairlead %s`: %s", path, line, wrong)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 100 {
		t.Errorf("found %d commands on the pages: this test looks for them in the wrong way", found)
	}
}

// commandsOn are the arguments of fairlead on a page: in code within a line, and in lines of code.
func commandsOn(page string) []string {
	inline := regexp.MustCompile("`(?:sudo |bin/)*fairlead ([^`]+)`")
	block := regexp.MustCompile(`^(?: {4,}|\t)?(?:\$ |sudo |bin/|ExecStart=.*/)*fairlead (.+)$`)
	var out []string
	fenced := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if m := block.FindStringSubmatch(line); m != nil && (fenced || strings.HasPrefix(line, "    ")) {
			out = append(out, m[1])
			continue
		}
		for _, m := range inline.FindAllStringSubmatch(line, -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// wrongIn is what is wrong with the arguments of a command. Only its name and its flags count.
func wrongIn(line string) []string {
	line, _, _ = strings.Cut(line, " #")
	for _, end := range []string{" | ", " && ", " > ", " >", ";"} {
		line, _, _ = strings.Cut(line, end)
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	c := newRoot()
	for len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		var next *cobra.Command
		name, _, _ := strings.Cut(words[0], "|") // one of several
		for _, sub := range c.Commands() {
			if sub.Name() == name || sub.HasAlias(name) {
				next = sub
			}
		}
		if next == nil {
			break
		}
		c, words = next, words[1:]
	}
	var out []string
	if c.HasSubCommands() && len(words) > 0 && !strings.HasPrefix(words[0], "-") && words[0] != "…" {
		out = append(out, "there is no command "+words[0])
	}
	c.InitDefaultHelpFlag()
	for _, w := range words {
		name, ok := strings.CutPrefix(strings.Trim(w, "[]()'\",."), "-")
		if !ok || strings.HasPrefix(name, "{") {
			continue
		}
		var flag *pflag.Flag
		if long, ok := strings.CutPrefix(name, "-"); ok {
			long, _, _ = strings.Cut(long, "=")
			if long == "" {
				continue
			}
			flag = c.Flag(long)
		} else if name != "" {
			flag = c.Flags().ShorthandLookup(name[:1])
		} else {
			continue
		}
		if flag == nil {
			out = append(out, c.CommandPath()+" has no flag "+w)
		}
	}
	return out
}
