package gateways

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// TestPages goes through the pages, one after the other, in one mesh.
func TestPages(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	files, err := filepath.Glob("pages/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, p := range pages() {
		used["pages/"+p.file] = true
		if p.do != nil {
			p.do(l)
		}
		l.Write("page.yaml", l.read("pages/"+p.file))
		for _, q := range p.asks {
			t.Logf("%s: %s", p.file, q.ask)
			envoytest.Eventually(t, envoytest.Patience, func() error { return l.check(q) })
		}
	}
	for _, f := range files {
		if !used[f] {
			t.Errorf("nobody reads %s", f)
		}
	}
}

func (l *lab) check(q question) error {
	host, ask, _ := strings.Cut(q.ask, ": ")
	ask = strings.ReplaceAll(ask, "INGRESS", l.ingress.IP4())
	answer, err := l.ask(host, ask)
	switch {
	case q.fails != "" && (err == nil || !strings.Contains(err.Error(), q.fails)):
		return fmt.Errorf("%s: %q, %w; want it to fail with %q", ask, answer, err, q.fails)
	case q.fails == "" && (err != nil || !strings.Contains(answer, strings.ReplaceAll(q.answer, "INGRESS", l.ingress.IP4()))):
		return fmt.Errorf("%s: %q, %w; want %q", ask, answer, err, q.answer)
	}
	return nil
}

// ask asks from a host outside of the mesh, from the client, or the Envoy of the egress gateway.
func (l *lab) ask(host, ask string) (string, error) {
	const curl = "exec curl -q -sS --max-time 10 --noproxy '*' "
	if port, found := strings.CutPrefix(ask, "tcp "); found {
		number, times, _ := strings.Cut(port, " ")
		return l.lines(number, times)
	}
	switch host {
	case "client":
		names, err := l.CLI("addresses", "--etc-hosts", "loopback", "--run-dir", l.RunDir("server"))
		if err != nil {
			return "", err
		}
		l.client.Etc("hosts", "127.0.0.1 localhost\n"+names)
		return l.client.Run(0, "sh", "-c", "cd "+l.control()+" && "+curl+ask)
	case "egress":
		stats, err := l.EnvoyAdmin("egress", "/clusters")
		var out strings.Builder
		for line := range strings.Lines(stats) {
			if strings.HasPrefix(line, ask+"::") {
				out.WriteString(strings.NewReplacer("::", ": ", "rq"+"_total", "requests").Replace(line)) // no statistic has this name alone
			}
		}
		return out.String(), err
	}
	return l.Control.Run(0, "sh", "-c", "cd "+l.control()+" && "+curl+ask)
}

// lines sends lines through the gateway, each by a connection of its own, and counts who answers.
func (l *lab) lines(port, times string) (string, error) {
	var one, two int
	var n int
	if _, err := fmt.Sscan(times, &n); err != nil {
		return "", err
	}
	for range n {
		out := ""
		l.Control.As(hosttest.AppUser, func() { out = line(l.t, l.ingress.IP4()+":"+port) })
		switch {
		case strings.HasPrefix(out, "one "):
			one++
		case strings.HasPrefix(out, "two "):
			two++
		default:
			return "", fmt.Errorf("the answer is %q", out)
		}
	}
	if one > two && two > 0 {
		return "both", nil
	}
	return fmt.Sprintf("%d one, %d two", one, two), nil
}
