package schema

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// typeMessage says that a value has the wrong type and what to write instead.
func typeMessage(n *tree.Node, s *Schema) string {
	want := map[string]string{
		"string": "a string", "integer": "an integer", "number": "a number",
		"boolean": "true or false", "array": "a list", "object": "an object",
	}[s.Type]
	if s.IntOrString {
		want = "an integer or a string"
	}
	message := fmt.Sprintf("must be %s, not %s", want, article(n))
	switch {
	case len(s.Enum) > 0:
		return message + "; " + choose("", enumNames(s))
	case s.Type == "string" && n.Kind == tree.Bool && !isTrueFalse(n.Text):
		return message + fmt.Sprintf("; unquoted %s is a boolean in YAML, write %q", n.Text, n.Text)
	case s.Type == "string" && isDuration(s) && isNumber(n.Text):
		return message + "; " + durationAdvice(n.Text)
	case s.Type == "string" && n.Text != "" && n.Kind != tree.Null:
		return message + fmt.Sprintf("; write %q", n.Text)
	case n.Kind == tree.String && (s.Type == "integer" || s.Type == "number") && isNumber(n.Text),
		n.Kind == tree.String && s.Type == "boolean" && isTrueFalse(n.Text):
		return message + fmt.Sprintf("; write %s without quotes", n.Text)
	case n.Kind == tree.Null:
		return message + "; give it a value or remove the field"
	case s.Type == "array":
		return message + `; put "- " before it`
	}
	return message
}

func enumNames(s *Schema) []string {
	var names []string
	for _, v := range s.Enum {
		if name, ok := v.(string); ok {
			names = append(names, name)
		}
	}
	return names
}

func article(n *tree.Node) string {
	switch n.Kind {
	case tree.Null:
		return "empty (null)"
	case tree.Bool:
		return "a boolean"
	case tree.Int:
		return "an integer"
	case tree.Float:
		return "a number with a fraction"
	case tree.String:
		return "a string"
	case tree.List:
		return "a list"
	case tree.Map:
		return "an object"
	default:
		return n.Kind.String()
	}
}

func isTrueFalse(text string) bool { return text == "true" || text == "false" }

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

func fmtNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// choose tells what could have been meant.
func choose(name string, names []string) string {
	if near := Near(name, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	switch {
	case len(names) == 0:
		return "remove it"
	case len(names) > 12:
		return "remove it"
	default:
		return "write one of " + strings.Join(names, ", ")
	}
}

// Near is the one of names that is most like name, or "" if none is like it.
func Near(name string, names []string) string {
	fold := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
	}
	best, bestAt := "", 1000
	for _, candidate := range names {
		d := distance(fold(name), fold(candidate))
		if d < bestAt && d <= max(1, len(candidate)/3) {
			best, bestAt = candidate, d
		}
	}
	return best
}

// distance is the number of letters to insert, remove, replace or swap to make
// a of b. Names longer than any field's are far from everything.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		rows[2][0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[2][j] = min(rows[1][j]+1, rows[2][j-1]+1, rows[1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[2][j] = min(rows[2][j], rows[0][j-2]+1)
			}
		}
		rows[0], rows[1], rows[2] = rows[1], rows[2], rows[0]
	}
	return rows[1][len(b)]
}

// alternatives lists the fields that branches require.
func alternatives(branches []*Schema, word string) string {
	var names []string
	for _, b := range branches {
		switch {
		case len(b.Required) > 0:
			names = append(names, strings.Join(b.Required, " with "))
		case len(b.AnyOf) > 0:
			names = append(names, alternatives(b.AnyOf, word))
		case b.Type != "":
			names = append(names, b.Type)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " " + word + " " + names[len(names)-1]
}

// oneOfMessage names the fields that exclude one another and are set.
func oneOfMessage(n *tree.Node, branches []*Schema, fitting int) string {
	if fitting == 0 {
		return "must have exactly one of " + alternatives(branches, "or")
	}
	var set []string
	for _, b := range branches {
		for _, name := range b.Required {
			if n.Field(name) != nil {
				set = append(set, name)
			}
		}
	}
	slices.Sort(set)
	set = slices.Compact(set)
	if len(set) < 2 {
		return "must have only one of " + alternatives(branches, "and")
	}
	return strings.Join(set, " and ") + " exclude one another; keep one of them"
}

// ruleMessage adds to the message of a CEL rule what it leaves out.
func ruleMessage(n *tree.Node, message string) string {
	if !strings.HasPrefix(message, "must be a valid duration") || n.Kind != tree.String {
		return message
	}
	return fmt.Sprintf("%q %s; %s", n.Text, strings.Replace(message, "must be", "is not", 1), durationAdvice(n.Text))
}

// isDuration reports whether a text is one: a rule reads it as such.
func isDuration(s *Schema) bool {
	return slices.ContainsFunc(s.Rules, func(r Rule) bool { return strings.Contains(r.Rule, "duration(") })
}

// durationAdvice says what to write. A number without a unit is most likely in seconds.
func durationAdvice(text string) string {
	if isNumber(text) && !strings.HasPrefix(text, "-") {
		return fmt.Sprintf("write %ss for seconds, or another unit: 500ms, 1h30m", text)
	}
	return "write one such as 500ms, 5s or 1h30m"
}

// formatOK judges the formats that Istio's schemas use for texts.
func formatOK(format, text string) bool {
	switch format {
	case "byte":
		_, err := base64.StdEncoding.DecodeString(text)
		return err == nil
	case "date-time":
		_, err := time.Parse(time.RFC3339, strings.ToUpper(text))
		return err == nil
	default:
		return true
	}
}

func formatNames(format string) string {
	if format == "byte" {
		return "text in base64"
	}
	return "a time such as 2026-01-31T12:00:00Z"
}
