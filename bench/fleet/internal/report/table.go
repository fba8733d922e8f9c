package report

import (
	"fmt"
	"strconv"
	"strings"
)

// Table is one part of the report.
type Table struct {
	Title string
	// Text is said before the table, Notes behind it.
	Text, Notes string
	Rows        []Row
	// Peers are the columns beside ours.
	Peers []Subject
	// Quoted adds the columns of what others measured.
	Quoted bool
}

// Heading is that of a subject's column.
func (s Subject) Heading() string {
	switch s {
	case Linear:
		return "go-control-plane, LinearCache"
	case Snapshot:
		return "go-control-plane, SnapshotCache"
	case Limit:
		return "limit: bare fan-out"
	default:
		return "Fairlead"
	}
}

// Markdown writes the table; base may be nil.
func (t Table) Markdown(s *Samples, base *Baseline) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", t.Title)
	if t.Text != "" {
		b.WriteString(t.Text + "\n\n")
	}
	head := []string{"", Ours.Heading(), "spread", "runs", "budget", ""}
	for _, p := range t.Peers {
		head = append(head, p.Heading())
	}
	if t.Quoted {
		head = append(head, "istiod, quoted", "go-control-plane, quoted")
	}
	head = append(head, "baseline")
	line(&b, head)
	line(&b, strings.Split(strings.Repeat("---,", len(head)-1)+"---", ","))
	for _, r := range t.Rows {
		cells := []string{r.Name}
		f, ok := s.Of(Ours, r.ID)
		switch {
		case !ok && r.Budget < 0:
			cells = append(cells, "–", "", "", r.budget(), "")
		case !ok:
			cells = append(cells, "not measured", "", "", r.budget(), "")
		default:
			cells = append(cells, r.Text(f.Median), spread(r, f), strconv.Itoa(f.Runs), r.budget(), r.Verdict(f))
		}
		for _, p := range t.Peers {
			cells = append(cells, t.peer(s, r, p))
		}
		if t.Quoted {
			cells = append(cells, orDash(r.Istiod), orDash(r.Peer))
		}
		line(&b, append(cells, base.text(r, f, ok)))
	}
	if t.Notes != "" {
		b.WriteString("\n" + t.Notes + "\n")
	}
	return b.String()
}

func (t Table) peer(s *Samples, r Row, p Subject) string {
	f, ok := s.Of(p, r.ID)
	if !ok {
		return "–"
	}
	text := r.Text(f.Median)
	if f.Runs == 1 {
		return text + " (1 run)"
	}
	return text
}

func spread(r Row, f Figure) string { return r.Text(f.Min) + " to " + r.Text(f.Max) }

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func line(b *strings.Builder, cells []string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
