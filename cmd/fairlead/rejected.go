package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
)

const (
	// maxShown is how many rejections of a proxy are listed; the others are counted.
	maxShown = 10
	// maxRejections limits the listed rejections of all proxies.
	maxRejections = 3 * maxShown
	// maxOrigins limits the listed origins of a resource, and maxNamed the named proxies with
	// the same rejection.
	maxOrigins, maxNamed = 4, 3
)

// sameRejection is a rejection that several proxies have in the same words. A bad change is
// rejected by all proxies that see it, and is listed once.
type sameRejection struct {
	server.Rejection
	proxies []string
}

// writeRejected lists the rejected resources, in the words of the proxies.
func writeRejected(w io.Writer, proxies []server.Proxy) {
	list, more := gather(proxies)
	for _, t := range list {
		_, _ = fmt.Fprintf(w, "\n%s rejected %s %s:\n  %s\n", strings.Join(some(t.proxies, maxNamed), ", "), t.Type, safetext.Sanitize(t.Name, 1024), safetext.Sanitize(t.Reason, 1024))
		if len(t.Origins) > 0 {
			_, _ = fmt.Fprintf(w, "  made from %s\n", safetext.Sanitize(strings.Join(t.Origins, " "), 1024))
		}
	}
	if more.n > 0 {
		_, _ = fmt.Fprintf(w, "\n… and %d more that %s rejected: `fairlead proxy-config all %s` lists them\n",
			more.n, strings.Join(some(more.proxies, maxNamed), ", "), more.proxies[0])
	}
}

// omitted are rejections that are only counted.
type omitted struct {
	n       int
	proxies []string
}

func (u *omitted) add(n int, proxy string) {
	if n == 0 {
		return
	}
	u.n += n
	if last := len(u.proxies) - 1; last < 0 || u.proxies[last] != proxy {
		u.proxies = append(u.proxies, proxy)
	}
}

// gather groups rejections with the same words, in order: so many of a proxy, and of all.
func gather(proxies []server.Proxy) ([]*sameRejection, omitted) {
	type same struct{ kind, name, reason string }
	var list []*sameRejection
	var more omitted
	known := map[same]*sameRejection{}
	for _, p := range proxies {
		shown := 0
		for _, t := range p.Types {
			for _, r := range t.Rejected {
				k := same{t.Type, r.Name, r.Reason}
				switch {
				case known[k] != nil:
					known[k].proxies = append(known[k].proxies, p.Name)
				case shown == maxShown || len(list) == maxRejections:
					more.add(1, p.Name)
					continue
				default:
					r.Type = t.Type
					known[k] = &sameRejection{r, []string{p.Name}}
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
	if len(list) <= few+1 { // to count one takes as much space as to list it
		return list
	}
	return append(append([]string(nil), list[:few]...), fmt.Sprintf("… and %d more", len(list)-few))
}
