package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// contextLines is how many equal lines stand around what differs.
const contextLines = 3

// maxEdits bounds the work of comparing two texts: with more edits than that
// they are shown as two different ones.
const maxEdits = 1000

// edit is one line of a comparison: equal (' '), removed ('-') or added ('+').
type edit struct {
	kind byte
	line string
}

// splitLines splits a text into lines that keep their ends.
func splitLines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return slices.Collect(strings.Lines(string(text)))
}

// compareLines finds a shortest way from one text to another (Myers 1986).
func compareLines(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var out []edit
	for _, line := range a[:head] {
		out = append(out, edit{' ', line})
	}
	out = append(out, middle(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, line := range a[len(a)-tail:] {
		out = append(out, edit{' ', line})
	}
	return out
}

// middle compares what is left without a common beginning and end.
func middle(a, b []string) []edit {
	trace, found := search(a, b)
	if !found {
		var out []edit
		for _, line := range a {
			out = append(out, edit{'-', line})
		}
		for _, line := range b {
			out = append(out, edit{'+', line})
		}
		return out
	}
	var out []edit
	x, y := len(a), len(b)
	for d, v := range slices.Backward(trace) {
		k := x - y
		at := func(k int) int { return v[k+d+1] }
		fromK := k - 1
		if k == -d || k != d && at(k-1) < at(k+1) {
			fromK = k + 1
		}
		fromX := at(fromK)
		fromY := fromX - fromK
		for x > fromX && y > fromY {
			x, y = x-1, y-1
			out = append(out, edit{' ', a[x]})
		}
		switch {
		case d == 0:
		case x == fromX:
			out = append(out, edit{'+', b[fromY]})
		default:
			out = append(out, edit{'-', a[fromX]})
		}
		x, y = fromX, fromY
	}
	slices.Reverse(out)
	return out
}

// search walks with ever more edits until both texts are at their end. The trace
// is how far each diagonal had come before each round; not found means that there
// are too many.
func search(a, b []string) (trace [][]int, found bool) {
	limit := min(len(a)+len(b), maxEdits)
	zero := limit + 1
	v := make([]int, 2*limit+3)
	for d := range limit + 1 {
		trace = append(trace, slices.Clone(v[zero-d-1:zero+d+2]))
		for k := -d; k <= d; k += 2 {
			x := v[zero+k-1] + 1
			if k == -d || k != d && v[zero+k-1] < v[zero+k+1] {
				x = v[zero+k+1]
			}
			for x < len(a) && x-k < len(b) && a[x] == b[x-k] {
				x++
			}
			v[zero+k] = x
			if x >= len(a) && x-k >= len(b) {
				return trace, true
			}
		}
	}
	return nil, false
}

// unified writes what differs with some lines around it, as diff -u does.
func unified(w io.Writer, edits []edit) error {
	oldLine, newLine := 1, 1
	for i := 0; i < len(edits); {
		if edits[i].kind == ' ' {
			i, oldLine, newLine = i+1, oldLine+1, newLine+1
			continue
		}
		begin, end := hunk(edits, i)
		lead := i - begin
		var olds, news int
		for _, e := range edits[begin:end] {
			if e.kind != '+' {
				olds++
			}
			if e.kind != '-' {
				news++
			}
		}
		if _, err := fmt.Fprintf(w, "@@ -%s +%s @@\n", span(oldLine-lead, olds), span(newLine-lead, news)); err != nil {
			return err
		}
		for _, e := range edits[begin:end] {
			line, ended := strings.CutSuffix(e.line, "\n")
			line = strings.Map(visible, line)
			if !ended {
				line += "\n\\ No newline at end of file"
			}
			if _, err := fmt.Fprintf(w, "%c%s\n", e.kind, line); err != nil {
				return err
			}
		}
		oldLine, newLine, i = oldLine-lead+olds, newLine-lead+news, end
	}
	return nil
}

// hunk is what is shown together around the edit at i: no more than twice the
// context may be equal in between.
func hunk(edits []edit, i int) (begin, end int) {
	last := i
	for j := i; j < len(edits) && j-last <= 2*contextLines; j++ {
		if edits[j].kind != ' ' {
			last = j
		}
	}
	return max(0, i-contextLines), min(len(edits), last+1+contextLines)
}

func span(line, n int) string {
	if n == 0 {
		line--
	}
	if n == 1 {
		return strconv.Itoa(line)
	}
	return fmt.Sprintf("%d,%d", line, n)
}

// visible keeps what a text says from being an order to the terminal.
func visible(r rune) rune {
	if !unicode.IsPrint(r) && r != '\t' {
		return unicode.ReplacementChar
	}
	return r
}
