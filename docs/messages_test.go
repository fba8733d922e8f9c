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
	quoted := regexp.MustCompile("(?:`([^`\n]+)`|msg=\"([^\"]+)\")")
	// Commands, and what Consul and Istio call things.
	other := regexp.MustCompile(`^(?:fairlead|bin/|curl|systemctl|journalctl|token create|kill|git|go|make|authentication handshake|istio_agent_cert|RBAC|no healthy|[0-9]|[-{*'/<A-Z])`)
	varies := regexp.MustCompile(`…|: |"[^"]*"|[0-9][0-9.]*`)
	found := 0
	for _, name := range []string{"configuration.md", "consul.md", "operations.md", "troubleshooting.md", "reference-operations.md", "reference-limits.md"} {
		for _, m := range quoted.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", name)), -1) {
			message := m[1] + m[2]
			if other.MatchString(message) {
				continue
			}
			for _, part := range varies.Split(message, -1) {
				part = strings.Trim(part, " ,;:()")
				if len(strings.Fields(part)) < 3 {
					continue
				}
				found++
				if !strings.Contains(sources, part) && !says(sources, formats, strings.Fields(part), 2) {
					t.Errorf("docs/%s quotes %q, which no source says: %q", name, message, part)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d messages on the pages: this test looks for them in the wrong way", found)
	}
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
