package metrics

import (
	"bytes"
	"io"
	"unicode/utf8"
)

// merger writes the lines of several pages of metrics as one page that is valid: every line is
// well formed, and no family is in it twice. The first part that has a family keeps it.
type merger struct {
	w    io.Writer
	err  error // of the writer
	part int   // that is being written, counted from 1
	// families are those that the page has.
	families map[string]*pageFamily
	buf      []byte
	// dropped counts lines of the current part that were left out.
	dropped uint64
}

// pageFamily is a family of metrics of the page.
type pageFamily struct {
	name           string
	part           int
	helped, closed bool   // it has help, it has a type or samples
	bound          string // the label that has to be a number: those of histograms and summaries
}

// maxFamilies bounds the names of one page.
const maxFamilies = 20000

func newMerger(w io.Writer) *merger {
	m := &merger{w: w, families: map[string]*pageFamily{}}
	for _, name := range ofScrapes() {
		m.reserve(name, "gauge")
	}
	return m
}

// ofScrapes are what Prometheus itself writes for each target. On a page they would be the target's,
// so that an application could say whether the host is up.
func ofScrapes() []string {
	return []string{
		"up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling", "scrape_series_added",
		"scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes",
	}
}

// ownPrefix is that of the agent's metrics: those that it has none of now are not for others, either.
const ownPrefix = "fairlead_"

// reserve keeps a family for the part that is written without a check.
func (m *merger) reserve(name, kind string) {
	f := &pageFamily{name: name, helped: true, closed: true}
	m.families[name] = f
	m.reserveParts(f, kind)
}

// reserveParts reserves the names of the samples of a family.
func (m *merger) reserveParts(f *pageFamily, kind string) {
	var suffixes []string
	switch kind {
	case "histogram":
		f.bound, suffixes = "le", []string{"_bucket", "_sum", "_count"}
	case "summary":
		f.bound, suffixes = "quantile", []string{"_sum", "_count"}
	}
	for _, s := range suffixes {
		if m.families[f.name+s] == nil {
			m.families[f.name+s] = f
		}
	}
}

// begin begins the next part.
func (m *merger) begin() {
	m.part++
	m.dropped = 0
}

// line writes a line of the current part, or leaves it out.
func (m *merger) line(line []byte) {
	line = bytes.Trim(line, " \t\r\n")
	switch {
	case len(line) == 0:
	case line[0] == '#':
		m.comment(line)
	default:
		m.sample(line)
	}
}

func (m *merger) sample(line []byte) {
	s, ok := parseSample(line)
	if !ok {
		m.dropped++
		return
	}
	f := m.family(s.name)
	if f == nil {
		m.dropped++
		return
	}
	if f.bound != "" && !hasNumber(s.labels, f.bound) {
		m.dropped++
		return
	}
	f.closed = true
	m.write(s.line)
}

// hasNumber reports whether a label is a number, if it is there.
func hasNumber(labels []byte, name string) bool {
	_, ok := walkLabels(labels, func(n, escaped []byte) bool { return string(n) != name || isNumber(escaped) })
	return ok
}

// family is the family of a name if the current part may write it, else nil.
func (m *merger) family(name []byte) *pageFamily {
	f := m.families[string(name)]
	if f == nil {
		if bytes.HasPrefix(name, []byte(ownPrefix)) {
			return nil
		}
		if len(m.families) >= maxFamilies {
			return nil
		}
		f = &pageFamily{name: string(name), part: m.part}
		m.families[f.name] = f
	}
	if f.part != m.part {
		return nil
	}
	return f
}

// comment writes help and types, once for each family and before its samples. Other comments
// are left out.
func (m *merger) comment(line []byte) {
	isType := false
	rest, ok := bytes.CutPrefix(line, []byte("# HELP "))
	if !ok {
		if rest, ok = bytes.CutPrefix(line, []byte("# TYPE ")); !ok {
			return
		}
		isType = true
	}
	n := nameLen(rest, true)
	if n == 0 || n == len(rest) || rest[n] != ' ' || !utf8.Valid(rest) {
		m.dropped++
		return
	}
	name, text := rest[:n], rest[n+1:]
	f := m.family(name)
	switch {
	case f == nil:
		m.dropped++
	case f.closed:
		// A second type, or one of a part of a histogram.
	case isType:
		kind := kindOf(string(text))
		f.closed = true
		m.reserveParts(f, kind)
		m.write([]byte("# TYPE " + f.name + " " + kind))
	case !f.helped && isHelp(text):
		f.helped = true
		m.write(line)
	}
}

// kindOf is a type of the text format; those that only OpenMetrics has are untyped.
func kindOf(s string) string {
	switch s {
	case "counter", "gauge", "histogram", "summary":
		return s
	}
	return "untyped"
}

// isHelp reports whether the escapes of a text are known.
func isHelp(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' {
			i++
			if i == len(text) || text[i] != '\\' && text[i] != 'n' {
				return false
			}
		}
	}
	return true
}

func (m *merger) write(line []byte) {
	if m.err != nil {
		return
	}
	m.buf = append(append(m.buf[:0], line...), '\n')
	_, m.err = m.w.Write(m.buf)
}
