package webhook

import (
	"fmt"
	"strings"
)

// maxNear bounds what a name is compared with: a person's list is shorter.
const maxNear = 100

// near returns " (did you mean X?)" for the one candidate that got is a slip of, or "".
func near(got string, candidates ...string) string {
	best, dist := "", 1+len(got)/3
	for _, c := range candidates[:min(len(candidates), maxNear)] {
		if d := editDistance(strings.ToLower(got), strings.ToLower(c)); d <= dist && got != c {
			best, dist = c, d-1
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// editDistance counts the single-byte edits between a and b. Values that come from
// a person's file are long only by mistake: those are given up on.
func editDistance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
