package webhook

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// headerMarks are the bytes that RFC 7230 allows in a header name besides letters and digits.
const headerMarks = "!#$%&'*+-.^_`|~"

func madeOf(s, extra string) bool {
	for i := range len(s) {
		if !isAlnum(s[i]) && strings.IndexByte(extra, s[i]) < 0 {
			return false
		}
	}
	return s != ""
}

// headerToken judges a header name made of the bytes of extra, letters and digits.
func (c cursor) headerToken(name, extra string) {
	switch {
	case name == "":
		c.wrong("the header name is empty")
	case !madeOf(name, extra):
		c.wrong("%q is not a header name; remove what is not a letter, a digit or a hyphen", name)
	}
}

// claimHeader is the name by which a route can match a claim of a verified token.
const claimHeader = "@request.auth.claims"

func isClaimHeader(name string) bool {
	if len(name) < len(claimHeader) || !strings.EqualFold(name[:len(claimHeader)], claimHeader) {
		return false
	}
	rest := name[len(claimHeader):]
	return strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[") && strings.HasSuffix(rest, "]")
}

// HasEmptyClaim reports whether a header stands for a claim, or a claim within one, without a name.
func HasEmptyClaim(header string) bool {
	if !isClaimHeader(header) {
		return false
	}
	name := header[len(claimHeader):]
	if inner, ok := strings.CutPrefix(name, "."); ok {
		return slices.Contains(strings.Split(inner, "."), "")
	}
	return slices.Contains(strings.Split(name[1:len(name)-1], "]["), "")
}

// matchHeader judges the name of a header that a route matches.
func (c cursor) matchHeader(name string) {
	switch name {
	case ":method", ":scheme", ":authority", ":path", ":status":
		return
	}
	if !isClaimHeader(name) {
		c.headerToken(name, headerMarks)
	}
}

func isAuthorityHeader(name string) bool {
	return strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host")
}

// headerChanges judges what is added to, set in and removed from a request and its response.
func (c cursor) headerChanges(h *networking.Headers) {
	if h == nil {
		return
	}
	c.at("request").headerOperations(h.Request, true)
	c.at("response").headerOperations(h.Response, false)
}

func (c cursor) headerOperations(op *networking.Headers_HeaderOperations, authority bool) {
	for _, name := range sorted(op.GetAdd()) {
		c.entry("add", name).changedHeader(name, authority)
		c.entry("add", name).headerValue(op.Add[name])
	}
	for _, name := range sorted(op.GetSet()) {
		c.entry("set", name).changedHeader(name, authority)
		c.entry("set", name).headerValue(op.Set[name])
	}
	for i, name := range op.GetRemove() {
		c.item("remove", i).changedHeader(name, false)
	}
}

// changedHeader judges the name of a header that is added, set or removed; only in
// a request, and not to be removed, may it be the authority.
func (c cursor) changedHeader(name string, authority bool) {
	switch {
	case name == "":
		c.wrong("the header name is empty")
	case authority && isAuthorityHeader(name):
	case strings.EqualFold(name, "host"):
		c.wrong("the header %q cannot be changed here; use rewrite.authority", name)
	case strings.HasPrefix(name, ":"):
		c.wrong("the header %q cannot be changed: names that begin with \":\" belong to HTTP itself", name)
	}
}

// headerValue judges a value as Envoy's formatter reads it: %COMMAND% stands for
// something, %% for a per cent sign.
func (c cursor) headerValue(value string) {
	for _, r := range value {
		if r <= 0x08 || r >= 0x0a && r <= 0x1f || r == 0x7f {
			c.wrong("the header value holds the control character %q", r)
			break
		}
	}
	s := formatScanner{rest: value}
	c.because(s.fault())
}

// formatScanner reads a format string of Envoy's header formatter.
type formatScanner struct{ rest string }

const openFormat = "the header value begins a %...% and does not end it; write %% for a per cent sign"

// fault says why the format cannot be read, or "".
func (s *formatScanner) fault() string {
	for {
		_, after, found := strings.Cut(s.rest, "%")
		if !found {
			return ""
		}
		s.rest = after
		switch {
		case after == "":
			return "the header value ends in a single per cent sign; write %%"
		case after[0] == '%':
			s.rest = after[1:]
		default:
			if why := s.command(); why != "" {
				return why
			}
		}
	}
}

// command reads up to and with the closing sign of %COMMAND% or %COMMAND(...)%.
func (s *formatScanner) command() string {
	i := strings.IndexAny(s.rest, "%(")
	if i < 0 {
		return openFormat
	}
	open := s.rest[i] == '('
	s.rest = s.rest[i+1:]
	if !open {
		return ""
	}
	first, ok := s.next()
	switch {
	case !ok:
		return openFormat
	case first == '[':
		if why := s.quote(); why != "" {
			return why
		}
	}
	// Any other first byte, even a closing parenthesis, belongs to the argument.
	return s.argument()
}

// argument reads the text of an argument up to what ends the command.
func (s *formatScanner) argument() string {
	for {
		i := strings.IndexAny(s.rest, "\\)\"")
		if i < 0 {
			return openFormat
		}
		end := s.rest[i]
		s.rest = s.rest[i+1:]
		switch end {
		case '\\':
			if s.rest == "" {
				return "the header value ends in a backslash"
			}
			s.rest = s.rest[1:]
		case ')':
			return s.expect('%', "only the closing % may follow \")\" in the header value")
		case '"':
			if done, why := s.delimiter(); done {
				return why
			}
		}
	}
}

// delimiter reads what follows the closing quote of a list's element.
func (s *formatScanner) delimiter() (done bool, why string) {
	b, ok := s.next()
	switch {
	case !ok:
		return true, openFormat
	case b == ',':
		why = s.quote()
		return why != "", why
	case b != ']':
		return true, "after a quoted argument the header value needs \",\" or \"]\""
	}
	if why = s.expect(')', "after \"]\" the header value needs \")\""); why != "" {
		return true, why
	}
	return true, s.expect('%', "only the closing % may follow \")\" in the header value")
}

func (s *formatScanner) quote() string {
	return s.expect('"', "a list of arguments in the header value holds only quoted strings")
}

// expect reads b after any spaces.
func (s *formatScanner) expect(b byte, why string) string {
	switch got, ok := s.next(); {
	case !ok:
		return openFormat
	case got != b:
		return why
	}
	return ""
}

// next reads the next byte that is not a space.
func (s *formatScanner) next() (byte, bool) {
	s.rest = strings.TrimLeft(s.rest, " ")
	if s.rest == "" {
		return 0, false
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return b, true
}
