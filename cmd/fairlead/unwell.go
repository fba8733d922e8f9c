package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/fairlist"
	"github.com/fairlead/fairlead/internal/safetext"
)

// manyConditions limits the conditions of one kind that are written, and manySubjects the subjects of
// which the same is so.
const manyConditions, manySubjects = 10, 20

// sameCondition is a condition that several subjects have in the same words, but for names and times.
type sameCondition struct {
	server.Condition
	others []string
}

// whose is the host of a condition, or the kind and namespace of its object: each is shown before the
// second one of another.
func (c *sameCondition) whose() string {
	namespace, _, _ := strings.Cut(c.Subject, "/")
	return cmp.Or(c.Host, namespace)
}

// writeUnwell writes what needs a person: what is so of several is one paragraph, and of each kind there
// are the first few.
func writeUnwell(w io.Writer, list []server.Condition) error {
	if len(list) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nUNWELL (%d)\n", server.Amount(list))
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Reason == list[0].Reason {
			n++
		}
		shown, same, unlisted := 0, fold(list[:n]), list[n-1].Others
		for _, c := range fairlist.First(same, manyConditions, (*sameCondition).whose) {
			_, _ = fmt.Fprintf(w, "  %s: %s\n", c.Reason, safetext.Sanitize(c.Text, 1024))
			if len(c.others) > 0 {
				_, _ = fmt.Fprintf(w, "      the same for %s\n", safetext.Sanitize(strings.Join(some(c.others, manySubjects), ", "), 1024))
			}
			_, _ = fmt.Fprintf(w, "      %s\n", safetext.Sanitize(c.Action, 1024))
			shown += max(1, c.Others) + len(c.others)
			if c.Others > 0 {
				unlisted = 0 // it is among those that are shown
			}
		}
		if more := server.Amount(list[:n]) - shown; more > 0 && unlisted > 0 {
			_, _ = fmt.Fprintf(w, "  %s: … and %d more; -o json has %d of them\n", list[0].Reason, more, more-unlisted)
		} else if more > 0 {
			_, _ = fmt.Fprintf(w, "  %s: … and %d more, which -o json has\n", list[0].Reason, more)
		}
		list = list[n:]
	}
	return err
}

// fold groups the conditions of one kind that say the same of different subjects, in order.
func fold(list []server.Condition) []*sameCondition {
	var out []*sameCondition
	known := map[string]*sameCondition{}
	for _, c := range list {
		words := wordsOf(&c)
		if k := known[words]; k != nil && c.Subject != k.Subject {
			k.others = append(k.others, c.Subject)
			continue
		}
		known[words] = &sameCondition{Condition: c}
		out = append(out, known[words])
	}
	return out
}

// durations are times as conditions have them.
var durations = regexp.MustCompile(`(?:less than )?\b(?:\d+h)?(?:\d+m)?\d+s\b`)

// wordsOf is what a condition says, without whom it is about and for how long.
func wordsOf(c *server.Condition) string {
	words := c.Text + "\n" + c.Action
	for _, name := range []string{c.Subject, c.Proxy, c.Host} {
		if name != "" {
			words = regexp.MustCompile(`(^|[^\w.-])`+regexp.QuoteMeta(name)+`($|[^\w.-])`).ReplaceAllString(words, "${1}…${2}")
		}
	}
	return durations.ReplaceAllString(words, "…")
}

// writeOnTheirWay says why proxies are not synced where no column does, those with the same reason
// together.
func writeOnTheirWay(w io.Writer, proxies []server.Proxy) {
	var reasons []string
	names := map[string][]string{}
	for _, x := range proxies {
		why := onItsWay(x)
		if why == "" || x.Withdrawn {
			continue
		}
		if names[why] == nil {
			reasons = append(reasons, why)
		}
		names[why] = append(names[why], x.Name)
	}
	for _, why := range reasons {
		_, _ = fmt.Fprintf(w, "\n%s: %s\n", strings.Join(some(names[why], manySubjects), ", "), why)
	}
}

// onItsWay is why a proxy is not synced, where no column says it.
func onItsWay(p server.Proxy) string {
	switch {
	case !p.Connected || p.Synced || p.Stale != "":
		return ""
	case newerComes(p):
		return "a newer configuration is on its way; ask again"
	}
	for _, t := range p.Types {
		if len(t.Rejected) > 0 || t.Pending || t.Type == "listener" {
			return ""
		}
	}
	return "Envoy has not asked for listeners yet, so it serves nothing: it starts, or waits for a certificate of one of its clusters"
}

// newerComes reports whether a proxy has answered all that it was sent, and is to get something newer.
func newerComes(p server.Proxy) bool {
	if !p.Connected || p.Synced || p.Stale != "" {
		return false
	}
	asks := false
	for _, t := range p.Types {
		if len(t.Rejected) > 0 || t.Pending {
			return false
		}
		asks = asks || t.Type == "listener"
	}
	return asks
}
