package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pki/svid"
)

// joined is how one host has joined.
type joined struct {
	faults map[codes.Code]int // by which calls had to be made again
	took   time.Duration
	err    error
}

// enroll makes a host of the mesh as an agent does: it joins, and then asks on a
// connection that proves the host for the certificate of its workload. A fault
// that ends an agent ends it.
func (p *process) enroll(ctx context.Context, token svid.JoinToken, pair svid.Pair) (out joined) {
	began := time.Now()
	defer func() { out.took = time.Since(began) }()
	client, err := svid.NewClient(svid.ClientConfig{Servers: token.Servers})
	if err != nil {
		return joined{err: err}
	}
	key, err := svid.NewKey()
	if err != nil {
		return joined{err: err}
	}
	out.faults = map[codes.Code]int{}
	var host *svid.Identity
	out.err = insist(ctx, 200*time.Millisecond, 5*time.Second, out.faults, func() (err error) {
		host, err = client.Join(ctx, token, key)
		return err
	})
	if out.err != nil {
		return out
	}
	out.err = insist(ctx, 500*time.Millisecond, 30*time.Second, out.faults, func() error {
		_, err := client.Workload(ctx, host, pair)
		return err
	})
	return out
}

// insist does something until it is done, with the waits of an agent between.
func insist(ctx context.Context, first, most time.Duration, faults map[codes.Code]int, do func() error) error {
	for wait := first; ; wait = min(2*wait, most) {
		began := time.Now()
		err := do()
		if err == nil || ctx.Err() != nil || errors.Is(err, svid.ErrRefused) || errors.Is(err, svid.ErrNotControlPlane) {
			return err
		}
		faults[status.Code(err)]++
		late := time.Duration(rand.Float64() * float64(time.Since(began)) / 2)
		pause(ctx, late+time.Duration((0.75+rand.Float64()/2)*float64(wait)))
	}
}

// dropped is how many connections were closed before they were authenticated, by
// reason.
func (p *process) dropped() string {
	p.t.Helper()
	var text []byte
	if err := p.client.Do(p.t.Context(), http.MethodGet, "/metrics", nil, &text); err != nil {
		p.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "fairlead_dropped_connections_total"); ok {
			out = append(out, strings.TrimSpace(rest))
		}
	}
	return strings.Join(out, ", ")
}

// TestFleetJoinsFromOneAddress: 1,000 hosts that start within 5 s behind one
// address (NAT, or a balancer before the server) are hosts with workloads within a
// minute, by the limits as they are and the agent's own waits. No connection of
// theirs is closed for another one's.
func TestFleetJoinsFromOneAddress(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 seconds")
	}
	const (
		hosts  = 1000
		spread = 5 * time.Second
		most   = 90 * time.Second // a minute, on a machine that has nothing else to do
	)
	p := spawn(t, plaintextMesh, envPerAddress+"="+os.Getenv(envPerAddress))
	tokens := make([]svid.JoinToken, hosts)
	for i := range tokens {
		tokens[i] = p.token(fmt.Sprintf("web-%d", i), false)
	}
	pair := cartPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	results := make([]joined, hosts)
	computed, began := p.cpu(), time.Now()
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			pause(ctx, spread*time.Duration(i)/hosts)
			results[i] = p.enroll(ctx, tokens[i], pair)
		})
	}
	wg.Wait()
	all := time.Since(began)
	var slowest time.Duration
	var first error
	failed, again := 0, map[codes.Code]int{}
	for _, r := range results {
		for code, n := range r.faults {
			again[code] += n
		}
		slowest = max(slowest, r.took)
		if r.err != nil {
			failed++
			first = r.err
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d hosts had not joined within %s, one of them because: %v", failed, hosts, most, first)
	}
	dropped := p.dropped()
	if !strings.Contains(dropped, `{reason="room"} 0`) {
		t.Errorf("hosts that join displace each other: %s", dropped)
	}
	t.Logf("%d hosts joined within %s, the slowest in %s; calls made again: %v; %s of the server's CPU; dropped: %s",
		hosts-failed, all.Round(time.Millisecond), slowest.Round(time.Millisecond), again, p.cpu()-computed, dropped)
}

// perAddress is --max-unauthenticated-per-address of a server of its own process.
func perAddress() int {
	n, err := strconv.Atoi(os.Getenv(envPerAddress))
	if err != nil {
		return 0
	}
	return n
}
