package traffic

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fairlead/fairlead/internal/meshtest"
)

// rotationTime is how long certificates of 20 s are watched: each is renewed at
// about half of its life, so that there are at least three generations.
const rotationTime = 46 * time.Second

// atRest is how long nothing was sent when nothing more is expected.
const atRest = 2 * time.Second

// TestRotation renews certificates of 20 s under load: HTTP over connections
// that stay and over one for each request, gRPC over one connection, and one TCP
// connection that outlives every certificate. Nothing may fail.
func TestRotation(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.StartServer("--certificate-ttl", "20s")
	client, echo := p.startHosts()
	plain := func() error {
		_, err := askTCP(t.Context(), p.at(12, 9000), nil)
		return err
	}
	p.Write("policy.yaml", policy("shop", "default", "{mtls: {mode: STRICT}}"))
	settle(t, func() error {
		if plain() == nil {
			return errors.New("STRICT is not in force yet")
		}
		_, err := askTCP(t.Context(), p.at(11, 9000), nil)
		return err
	})
	p.AwaitLive("client", "echo")
	sent := p.sentAtRest(t)
	keep := meshtest.NewClient(t, echoHost)
	loads := map[string]*meshtest.Load{
		"kept connections": keep.StartLoad(t, "http://"+p.at(11, 9080)+"/", 40),
		"new connections":  keep.Fresh().StartLoad(t, "http://"+p.at(11, 9081)+"/", 40),
	}
	ctx, cancel := context.WithTimeout(t.Context(), rotationTime)
	defer cancel()
	done := make(chan error, 2)
	go func() { done <- steadyGRPC(ctx, p.at(11, 9090)) }()
	go func() { done <- steadyTCP(ctx, p.at(11, 9000)) }()

	serials := map[string]int{}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			cert := presented(t, p.at(12, 9080))
			serials[cert.SerialNumber.Text(16)]++
			if left := time.Until(cert.NotAfter); left <= 0 || left > 20*time.Second {
				t.Errorf("the certificate ends in %s", left)
			}
		case <-ctx.Done():
		}
	}
	if len(serials) < 3 {
		t.Errorf("echo has shown only %d certificates in %s: %v", len(serials), rotationTime, serials)
	}
	for name, l := range loads {
		r := l.Stop()
		t.Logf("%s: %d answered, %d certificates", name, r.Good, len(serials))
		if r.Failed != 0 || r.Good < 100 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	// A stream ends before the certificate it was opened with, 8 to 19 s old, and
	// the next one brings nothing, because nothing has changed.
	for _, agent := range []*meshtest.Process{client, echo} {
		for _, line := range []string{"workload identity renewed", "connected to the control plane"} {
			if n := strings.Count(agent.Log(), line); n < 3 {
				t.Errorf("the agent of %s says %q only %d times", agent.Name, line, n)
			}
		}
	}
	if now := p.sent(t); now != sent || sent == 0 {
		t.Errorf("%v resources had been sent, now %v", sent, now)
	}
}

// sentAtRest is the same as sent, once nothing more is on its way: the policy may
// reach one host, which is when it is seen to be in force, before the other.
func (p *pair) sentAtRest(t *testing.T) float64 {
	t.Helper()
	total, since := p.sent(t), time.Now()
	for time.Since(since) < atRest {
		<-time.After(atRest / 10)
		if now := p.sent(t); now != total {
			total, since = now, time.Now()
		}
	}
	return total
}

// sent is how many resources the control plane has sent since its start.
func (p *pair) sent(t *testing.T) float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.at(1, 15014)+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Timeout: patience}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	total := 0.0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "fairlead_xds_resources_sent_total"); ok {
			n, err := strconv.ParseFloat(value[strings.LastIndex(value, " ")+1:], 64)
			if err != nil {
				t.Fatal(err)
			}
			total += n
		}
	}
	return total
}

// presented is the certificate that an Envoy shows; the handshake goes no
// further.
func presented(t *testing.T, address string) *x509.Certificate {
	t.Helper()
	var cert *x509.Certificate
	errSeen := errors.New("seen")
	conf := tlsAs(nil)
	check := conf.VerifyConnection
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		cert = s.PeerCertificates[0]
		return errors.Join(check(s), errSeen)
	}
	if _, err := dial(t.Context(), address, conf); cert == nil || !errors.Is(err, errSeen) {
		t.Fatalf("seeing the certificate of %s: %v", address, err)
	}
	return cert
}

// steadyGRPC asks 20 times a second over one connection, until ctx ends.
func steadyGRPC(ctx context.Context, address string) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(echoHost))
	if err != nil {
		return err
	}
	err = steadily(ctx, 50*time.Millisecond, func(int) error {
		caller, err := invoke(context.WithoutCancel(ctx), conn)
		if err == nil && caller != clientID {
			err = errors.New("grpc: the caller is " + strconv.Quote(caller))
		}
		return err
	})
	return errors.Join(err, conn.Close())
}

// steadyTCP says a line 10 times a second on one connection, until ctx ends.
func steadyTCP(ctx context.Context, address string) error {
	c, err := dial(ctx, address, nil)
	if err != nil {
		return err
	}
	r := bufio.NewReader(c)
	err = steadily(ctx, 100*time.Millisecond, func(i int) error { return say(c, r, strconv.Itoa(i)) })
	return errors.Join(err, c.Close())
}

func steadily(ctx context.Context, period time.Duration, do func(int) error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := do(i); err != nil {
			return err
		}
	}
}
