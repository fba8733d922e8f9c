package mesh

import (
	"regexp"
	"strings"
)

// MetricLabelFormat is the format of Envoy for the value of a label of a Telemetry: a literal
// stands for itself, and any other expression is evaluated by Envoy. string() around the whole
// expression, which stock Envoys do not have, is left out: numbers are printed as they are.
func MetricLabelFormat(value string) string {
	value = MetricLabelExpression(value)
	if m := literal.FindStringSubmatch(value); m != nil {
		return strings.ReplaceAll(m[1]+m[2], "%", "%%")
	}
	return "%CEL(" + value + ")%"
}

// MetricLabelExpression is the expression of a label without string() around it.
func MetricLabelExpression(value string) string {
	value = strings.TrimSpace(value)
	inner, ok := strings.CutPrefix(value, "string(")
	if !ok || !strings.HasSuffix(inner, ")") {
		return value
	}
	inner = strings.TrimSuffix(inner, ")")
	open := 0
	for _, r := range inner { // the last bracket has to be that of string()
		switch r {
		case '(':
			open++
		case ')':
			if open--; open < 0 {
				return value
			}
		}
	}
	return inner
}

// literal is a text without escapes.
var literal = regexp.MustCompile(`^(?:'([^'\\]*)'|"([^"\\]*)")$`)
