package mapping

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// variable is what a template may have filled in.
type variable string

const (
	varService         variable = "Service"
	varNamespace       variable = "Namespace"
	varConsulNamespace variable = "ConsulNamespace"
	varPartition       variable = "Partition"
)

// values are those of one service.
type values struct{ service, namespace, consulNamespace, partition string }

func (v *values) of(name variable) string {
	switch name {
	case varService:
		return v.service
	case varNamespace:
		return v.namespace
	case varConsulNamespace:
		return v.consulNamespace
	case varPartition:
		return v.partition
	default:
		return ""
	}
}

// template is text with variables in it. No logic: what a name becomes should
// be seen at a glance.
type template struct{ pieces []piece }

type piece struct {
	text     string
	variable variable // or empty: text
}

// parseTemplate reads a template that may use some variables. Each part between
// dots has one variable at most: "a" beside "b-c" would else be the same as
// "a-b" beside "c", and one service could take the name of another.
func parseTemplate(text string, may []variable) (template, error) {
	var t template
	inPart := 0
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "{{")
		if before != "" {
			t.pieces = append(t.pieces, piece{text: before})
		}
		if strings.Contains(before, ".") {
			inPart = 0
		}
		if !found {
			break
		}
		name, tail, closed := strings.Cut(after, "}}")
		if !closed {
			return template{}, errors.New(`a "{{" has no "}}"`)
		}
		v := variable(strings.TrimPrefix(strings.TrimSpace(name), "."))
		if !slices.Contains(may, v) {
			return template{}, fmt.Errorf("{{%s}} is unknown; write one of %s", name, variables(may))
		}
		if inPart++; inPart > 1 {
			return template{}, fmt.Errorf("two variables without a dot between them would give two services one name; write {{.%s}} behind a dot", v)
		}
		t.pieces = append(t.pieces, piece{variable: v})
		rest = tail
	}
	return t, nil
}

func variables(list []variable) string {
	words := make([]string, 0, len(list))
	for _, v := range list {
		words = append(words, "{{."+string(v)+"}}")
	}
	return strings.Join(words, ", ")
}

// parseHost reads the template of a host name.
func parseHost(text string) (template, error) {
	t, err := parseTemplate(text, []variable{varService, varNamespace, varConsulNamespace, varPartition})
	if err != nil {
		return template{}, err
	}
	if !t.uses(varService) {
		return template{}, errors.New("it lacks {{.Service}}, so all services would have one host")
	}
	if last := t.pieces[len(t.pieces)-1]; !strings.Contains(last.text, ".") {
		return template{}, errors.New(`it must end in a fixed domain, such as {{.Service}}.mesh: else a registration could take any name, "localhost" too`)
	}
	sample := t.fill(&values{"a", "a", "a", "a"})
	if !isSubdomain(sample) || isNumeric(sample[strings.LastIndex(sample, ".")+1:]) {
		return template{}, fmt.Errorf("%q is no host name; use only lower case letters, digits, '-' and '.'", sample)
	}
	return t, nil
}

// parseIdentity reads the template of a namespace or account, of which fits says
// whether it is well formed.
func parseIdentity(text, fallback string, fits func(string) bool) (template, error) {
	if text == "" {
		text = fallback
	}
	t, err := parseTemplate(text, []variable{varService, varConsulNamespace, varPartition})
	if err != nil {
		return template{}, err
	}
	if sample := t.fill(&values{service: "a", consulNamespace: "a", partition: "a"}); !fits(sample) {
		return template{}, fmt.Errorf("%q is no name; use only lower case letters, digits and '-'", sample)
	}
	return t, nil
}

// overlap reports whether two templates can give the same text, each filled with
// values of its own.
func overlap(a, b *template) bool {
	as, bs := a.parts(), b.parts()
	if len(as) != len(bs) {
		return false
	}
	for i := range as {
		if !as[i].meets(&bs[i]) {
			return false
		}
	}
	return true
}

// part is what stays between two dots: text, or text around a variable.
type part struct {
	head, tail string
	open       bool // there is a variable between them
}

func (t *template) parts() []part {
	parts := []part{{}}
	for _, p := range t.pieces {
		if p.variable != "" {
			parts[len(parts)-1].open = true
			continue
		}
		for i, text := range strings.Split(p.text, ".") {
			if i > 0 {
				parts = append(parts, part{})
			}
			if last := &parts[len(parts)-1]; last.open {
				last.tail += text
			} else {
				last.head += text
			}
		}
	}
	return parts
}

func (a *part) meets(b *part) bool {
	switch {
	case !a.open && !b.open:
		return a.head == b.head
	case !b.open:
		return b.meets(a)
	case !a.open:
		return len(a.head) > len(b.head)+len(b.tail) && strings.HasPrefix(a.head, b.head) && strings.HasSuffix(a.head, b.tail)
	default:
		return (strings.HasPrefix(a.head, b.head) || strings.HasPrefix(b.head, a.head)) &&
			(strings.HasSuffix(a.tail, b.tail) || strings.HasSuffix(b.tail, a.tail))
	}
}

func (t *template) uses(v variable) bool {
	return slices.ContainsFunc(t.pieces, func(p piece) bool { return p.variable == v })
}

func (t *template) fill(v *values) string {
	if len(t.pieces) == 1 && t.pieces[0].variable != "" {
		return v.of(t.pieces[0].variable)
	}
	var b strings.Builder
	for _, p := range t.pieces {
		b.WriteString(p.text)
		b.WriteString(v.of(p.variable))
	}
	return b.String()
}
