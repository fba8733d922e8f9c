package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// block is a piece of a page that a reader copies: a file, or commands with what they print.
type block struct {
	host, path, content string // of a file
	command, output     string // of a command; output is empty if the page shows none
	rule                string // of a policy for a token of Consul
	line                int
}

// section reads the blocks of one section of a page, in order. A file is named in the text before it, as
// `PATH` or "`PATH` on HOST". A command that has output below it begins with "$ ", as in a terminal.
func section(t *testing.T, page, title string) (out []block) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), page))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([/\\w.-]+\\.(?:yaml|hcl))`(?: on (10\\.0\\.0\\.[12]|both hosts))?")
	inside, fenced := false, false
	var file block
	for n, line := range strings.Split(string(b), "\n") {
		text, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "## "):
			inside = line == "## "+title
		case !inside:
		case strings.HasPrefix(line, "```"):
			if fenced = !fenced; !fenced {
				out = append(out, file)
				file.content = ""
			}
		case fenced:
			file.content += line + "\n"
		case !indented:
			if m := named.FindStringSubmatch(line); m != nil {
				file = block{host: m[2], path: m[1], line: n + 1}
				if file.host == "" {
					file.host = "10.0.0.1"
				}
			}
		case aclRule.MatchString(text):
			out = append(out, block{rule: text, line: n + 1})
		case strings.HasPrefix(text, "$ "):
			out = append(out, block{command: text[2:], line: n + 1})
		case len(out) > 0 && out[len(out)-1].command != "" && out[len(out)-1].line+strings.Count(out[len(out)-1].output, "\n")+1 == n+1 && shown(string(b), out[len(out)-1].line):
			out[len(out)-1].output += text + "\n"
		default:
			out = append(out, block{command: strings.TrimLeft(text, " "), line: n + 1})
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no section %q with blocks", page, title)
	}
	return out
}

var aclRule = regexp.MustCompile(`^ *(?:node|service|key)_prefix "`)

// shown reports whether the command of a line begins with "$ ", and so has its output below it.
func shown(page string, line int) bool {
	return strings.HasPrefix(strings.Split(page, "\n")[line-1], "    $ ")
}

// stays reports whether a command stays in the foreground: the page says to give it a terminal.
var stays = regexp.MustCompile(`^(?:(?:ssh \S+ )?fairlead (?:server|agent) |make demo$|sh \.demo/start-server\.sh$)`)

// follow does what a section says, one block after the other, each once. What a command prints is what the
// page shows.
func (l *twoHosts) follow(page, title string) {
	l.t.Helper()
	one := l.hosts["10.0.0.1"]
	for _, b := range section(l.t, page, title) {
		switch {
		case b.rule != "":
		case b.path != "":
			for address, h := range l.hosts {
				if b.host == address || b.host == "both hosts" {
					h.write(b.path, b.content)
				}
			}
		case unit.MatchString(b.command):
			l.startUnit(b.command)
		case stays.MatchString(b.command):
			p := one.terminal(fmt.Sprintf("%s:%d", page, b.line), one.recipe(b.command))
			if b.output != "" {
				l.says(p, page, b)
			}
			if strings.HasPrefix(b.command, "fairlead server") {
				l.Server = p
				p.Eventually(envoytest.Patience, func() error {
					_, err := one.shell("fairlead host list")
					return err
				})
			}
		case b.output == "":
			if out, err := one.shell(b.command); err != nil {
				l.t.Fatalf("%s:%d: %v", page, b.line, err)
			} else {
				l.t.Logf("%s:%d: %s\n%s", page, b.line, b.command, out)
			}
		default:
			l.compare(page, b)
		}
	}
}

// says waits until a program in a terminal has said what the page shows.
func (l *twoHosts) says(p *meshtest.Process, page string, b block) {
	l.t.Helper()
	p.Eventually(envoytest.Patience, func() error {
		if log := p.Log(); !shownAs(b.output, "(?m)").MatchString(log) {
			return fmt.Errorf("%s:%d: %s\nprints\n%s\nand not\n%s", page, b.line, b.command, log, b.output)
		}
		return nil
	})
}

var (
	duration = regexp.MustCompile(`\d+\\\.\d+ s|\d+h\d+m`)
	count    = regexp.MustCompile(`(?m)^ *(\d+) "`)
)

// shownAs matches what a page shows. "…" of the page is anything within a line, and a duration is any; how many
// of the requests each version had is looked at besides.
func shownAs(output, flags string) *regexp.Regexp {
	want := regexp.QuoteMeta(strings.TrimSpace(output))
	want = duration.ReplaceAllString(strings.ReplaceAll(want, "…", ".*"), ".*")
	return regexp.MustCompile(flags + "^" + count.ReplaceAllString(want, ` *\d+ "`) + "$")
}

// near reports whether counts are those of the page, by five standard deviations of a thousand requests at even odds.
func near(got, want string) bool {
	const off = 80
	g, w := count.FindAllStringSubmatch(got, -1), count.FindAllStringSubmatch(want, -1)
	for i := range min(len(g), len(w)) {
		a, _ := strconv.Atoi(g[i][1])
		b, _ := strconv.Atoi(w[i][1])
		if a < b-off || a > b+off {
			return false
		}
	}
	return len(g) == len(w)
}

// compare runs a command until it prints what the page shows: what was started before takes its time. A command
// fails only where the page shows an error.
func (l *twoHosts) compare(page string, b block) {
	l.t.Helper()
	want := shownAs(b.output, "")
	failing := strings.Contains(b.output, "curl: (") || strings.Contains(b.output, ": error [")
	envoytest.Eventually(l.t, envoytest.Patience, func() error {
		out, err := l.hosts["10.0.0.1"].shell(b.command)
		if err != nil && !failing || !want.MatchString(strings.TrimSpace(out)) || !near(out, b.output) {
			return fmt.Errorf("%s:%d: %s\nprints\n%s\nand not\n%s: %w", page, b.line, b.command, out, b.output, err)
		}
		return nil
	})
}
