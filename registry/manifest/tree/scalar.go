package tree

import (
	"encoding/base64"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// floatSyntax is what YAML 1.1 readers of the Go world take for a number.
//

var floatSyntax = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

// resolvePlain sets the kind and value of a scalar that was written without
// quotes, by the rules of YAML 1.1.
func (n *Node) resolvePlain() {
	if n.resolveWord() {
		return
	}
	n.Kind = String
	switch c := n.Text[0]; {
	case c == '.':
		if f, err := strconv.ParseFloat(n.Text, 64); err == nil {
			n.setFloat(f)
		}
	case c == '+' || c == '-' || c >= '0' && c <= '9':
		n.resolveNumber()
	}
}

// resolveWord handles the texts that have a fixed meaning.
func (n *Node) resolveWord() bool {
	switch n.Text {
	case "", "~", "null", "Null", "NULL":
		n.Kind = Null
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		n.Kind, n.Bool = Bool, true
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		n.Kind, n.Bool = Bool, false
	case ".nan", ".NaN", ".NAN":
		n.Kind, n.Float = Float, math.NaN()
	case ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF":
		n.Kind, n.Float = Float, math.Inf(1)
	case "-.inf", "-.Inf", "-.INF":
		n.Kind, n.Float = Float, math.Inf(-1)
	default:
		return false
	}
	return true
}

func (n *Node) resolveNumber() {
	digits := strings.ReplaceAll(n.Text, "_", "")
	if i, err := strconv.ParseInt(digits, 0, 64); err == nil {
		n.Kind, n.Int, n.Float = Int, i, float64(i)
		return
	}
	if u, err := strconv.ParseUint(digits, 0, 64); err == nil {
		// Too large for JSON readers that want an int64: they see a float.
		n.Kind, n.Float = Float, float64(u)
		return
	}
	if !floatSyntax.MatchString(digits) {
		return
	}
	if f, err := strconv.ParseFloat(digits, 64); err == nil {
		n.setFloat(f)
	}
}

// setFloat takes a float the way it comes out of JSON: what is written without
// fraction and exponent there is an integer.
func (n *Node) setFloat(f float64) {
	n.Kind, n.Float = Float, f
	if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
		n.Kind, n.Int = Int, int64(f)
	}
}

// resolveTagged handles a scalar with an explicit tag; it reports false where
// the text is not what the tag says.
func (n *Node) resolveTagged(tag string) bool {
	want := map[string][]Kind{
		"!!null": {Null}, "!!bool": {Bool}, "!!int": {Int}, "!!float": {Float, Int},
	}[tag]
	switch {
	case tag == "!!binary":
		raw, err := base64.StdEncoding.DecodeString(n.Text)
		n.Kind, n.Text = String, string(raw)
		return err == nil
	case want == nil:
		n.Kind = String
		return true
	}
	n.resolvePlain()
	return slices.Contains(want, n.Kind)
}

// key is the text that a scalar becomes as the key of a JSON object.
func (n *Node) key() (string, bool) {
	switch n.Kind {
	case String:
		return n.Text, true
	case Bool:
		return strconv.FormatBool(n.Bool), true
	case Int, Float:
		return n.numberKey()
	case Null, List, Map:
		return "", false
	default:
		return "", false
	}
}

// numberKey is the text of a number as a key. Istio's reader keeps apart here
// what was written as an integer and what as a float, and has no text for an
// integer that does not fit 64 bits.
func (n *Node) numberKey() (string, bool) {
	digits := strings.ReplaceAll(n.Text, "_", "")
	if i, err := strconv.ParseInt(digits, 0, 64); err == nil {
		return strconv.FormatInt(i, 10), true
	}
	if _, err := strconv.ParseUint(digits, 0, 64); err == nil {
		return "", false
	}
	if math.IsInf(n.Float, 0) || math.IsNaN(n.Float) {
		return strings.ToLower(strings.TrimPrefix(n.Text, "+")), true
	}
	return strconv.FormatFloat(n.Float, 'g', -1, 32), true
}
