package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/plain"
)

const (
	// manyShown is how many of a kind are told one by one; the others are counted.
	manyShown = 10
	// manyTold bounds what is told of the rejections of all proxies.
	manyTold = 3 * manyShown
	// fewFrom is how many places one resource is said to come from, fewNamed how
	// many proxies are named that say the same.
	fewFrom, fewNamed = 4, 3
)

// told is what proxies rejected in the same words. A bad change is rejected by
// all that see it, and a person wants to read that once.
type told struct {
	server.Rejection
	proxies []string
}

// writeRejected tells what proxies rejected, in their words.
func writeRejected(w io.Writer, proxies []server.Proxy) {
	list, more := gather(proxies)
	for _, t := range list {
		_, _ = fmt.Fprintf(w, "\n%s rejected %s %s:\n  %s\n", strings.Join(some(t.proxies, fewNamed), ", "), t.Type, plain.Words(t.Name, 1024), plain.Words(t.Reason, 1024))
		if len(t.Origins) > 0 {
			_, _ = fmt.Fprintf(w, "  made from %s\n", plain.Words(strings.Join(t.Origins, " "), 1024))
		}
	}
	if more.n > 0 {
		_, _ = fmt.Fprintf(w, "\n… and %d more that %s rejected: `fairlead proxy-config all %s` lists them\n",
			more.n, strings.Join(some(more.proxies, fewNamed), ", "), more.proxies[0])
	}
}

// untold are rejections that are counted only.
type untold struct {
	n       int
	proxies []string
}

func (u *untold) add(n int, proxy string) {
	if n == 0 {
		return
	}
	u.n += n
	if last := len(u.proxies) - 1; last < 0 || u.proxies[last] != proxy {
		u.proxies = append(u.proxies, proxy)
	}
}

// gather puts together what is rejected in the same words, in the order in which
// it is met: so many of a proxy, and of all.
func gather(proxies []server.Proxy) ([]*told, untold) {
	type same struct{ kind, name, reason string }
	var list []*told
	var more untold
	known := map[same]*told{}
	for _, p := range proxies {
		shown := 0
		for _, t := range p.Types {
			for _, r := range t.Rejected {
				k := same{t.Type, r.Name, r.Reason}
				switch {
				case known[k] != nil:
					known[k].proxies = append(known[k].proxies, p.Name)
				case shown == manyShown || len(list) == manyTold:
					more.add(1, p.Name)
					continue
				default:
					r.Type = t.Type
					known[k] = &told{r, []string{p.Name}}
					list = append(list, known[k])
				}
				shown++
			}
			more.add(t.RejectedMore, p.Name)
		}
	}
	return list, more
}

// some is the first few of a list, and how many others there are.
func some(list []string, few int) []string {
	if len(list) <= few+1 { // to count one takes as much room as it does
		return list
	}
	return append(append([]string(nil), list[:few]...), fmt.Sprintf("… and %d more", len(list)-few))
}
