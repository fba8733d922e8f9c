package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMessages holds what the pages quote of logs and errors against the sources:
// whoever searches a page for the words of a message must find them.
func TestMessages(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, path := range files(t, ".go") {
		if !strings.HasSuffix(path, "_test.go") {
			all.WriteString(read(t, path))
		}
	}
	// A message may be written in several literals, one behind the other.
	sources := regexp.MustCompile("[\"`] \\+\\s*[\"`]").ReplaceAllString(all.String(), "")
	sources = strings.ReplaceAll(sources, `\"`, `"`)
	var formats []string
	for line := range strings.Lines(sources) {
		if strings.Contains(line, "%s") {
			formats = append(formats, line)
		}
	}
	varies := regexp.MustCompile(`…|: |"[^"]*"|[0-9][0-9.]*(?:m ago)?`)
	found := 0
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range pages {
		name := filepath.Base(path)
		if name == "consul-mapping.md" { // its quotes are registrations, which a test of registry/consul/mapping compares
			continue
		}
		for _, q := range quotes(read(t, path)) {
			for _, part := range varies.Split(q.text, -1) {
				part = strings.Trim(part, " ,;:()")
				if part == "" || !q.cell && len(strings.Fields(part)) < 3 {
					continue
				}
				found++
				if !strings.Contains(sources, part) && !says(sources, formats, strings.Fields(part), 2) {
					t.Errorf("docs/%s quotes %q, which no source says: %q", name, q.text, part)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d messages on the pages: this test looks for them in the wrong way", found)
	}
}

// quote is a message on a page.
type quote struct {
	text string
	cell bool // of a table of what readers see; else it has at least three words
}

// quotes are the messages of a page.
func quotes(page string) []quote {
	quoted := regexp.MustCompile("(?:`([^`\n]+)`|msg=\"([^\"]+)\")")
	// Commands, and what Consul and Istio call things.
	other := regexp.MustCompile(`^(?:fairlead|bin/|curl|systemctl|journalctl|nft|resolvectl|token create|analyze --|render --|postrotate|kill|git|go|make|authentication handshake|istio_agent_cert|RBAC|no healthy|[0-9]|[-{*'/<A-Z])`)
	// What curl, gRPC, Envoy and Linux say.
	foreign := regexp.MustCompile(`^(?i:(?:[0-9]{3} ?)?(?:$|no healthy upstream|RBAC: )|connection (?:refused|reset)|address already in use|could not resolve|recv failure|empty reply|` +
		`authentication handshake failed|resourceexhausted|envoy overloaded)`)
	var out []quote
	add := func(text string, cell bool, not *regexp.Regexp) {
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			if message := m[1] + m[2]; !not.MatchString(message) {
				out = append(out, quote{message, cell})
			}
		}
	}
	add(page, false, other)
	for _, cell := range seen(page) {
		add(cell, true, foreign)
	}
	return out
}

// seen are the cells of a page's tables under "You see": messages that a reader looks for.
func seen(page string) []string {
	var out []string
	in := false
	for line := range strings.Lines(page) {
		switch {
		case !strings.HasPrefix(line, "|"):
			in = false
		case strings.HasPrefix(line, "| You see |"):
			in = true
		case in:
			cell, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), " | ")
			out = append(out, cell)
		}
	}
	return out
}

// says reports whether a format has the words, with at most so many %s in place of
// some of them. Three words or more in place of a %s are those of a message, too.
func says(sources string, formats, words []string, verbs int) bool {
	has := func(text string) bool {
		return slices.ContainsFunc(formats, func(f string) bool { return strings.Contains(f, text) })
	}
	for from := range words {
		for to := from + 1; to <= len(words) && to-from < len(words)-1; to++ {
			if words[from] == "%s" || to-from > 2 && !strings.Contains(sources, strings.Join(words[from:to], " ")) {
				continue
			}
			with := slices.Concat(words[:from], []string{"%s"}, words[to:])
			if has(strings.Join(with, " ")) || verbs > 1 && says(sources, formats, with, verbs-1) {
				return true
			}
		}
	}
	return false
}
