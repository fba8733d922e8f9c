package keeper

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// TestBootInClosedMode: a host boots while its application calls and is called all the time. The
// table is there before the network; until Envoy listens everything is refused, and then it goes
// to Envoy: not one packet of the application is on the wire in between, and none reaches it.
func TestBootInClosedMode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	device := fmt.Sprintf("v%da", r.net)
	r.IP("link", "set", device, "down")
	r.Serve("app", 8080, false)
	r.peer.Serve("peer", 80, false)
	r.confirm(settings(nil))
	wire := r.Wire(device, 80)
	var refused, through atomic.Int64
	ctx, end := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer func() { end(); group.Wait() }()
	r.keep()
	for _, to := range []string{r.at(2, 80), fmt.Sprintf("[fd00:%d::2]:80", r.net), "240.240.0.7:80", "[2001:2::7]:80"} {
		group.Go(func() {
			r.As(appUser, func() {
				for ctx.Err() == nil {
					answer, err := nethost.Call(context.WithoutCancel(ctx), to)
					switch {
					case err == nil && strings.HasPrefix(answer, "out "):
						through.Add(1)
					case err == nil:
						t.Errorf("%s: %q", to, answer)
						return
					default:
						refused.Add(1)
					}
				}
			})
		})
	}
	many := func(n *atomic.Int64) {
		t.Helper()
		before := n.Load()
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if now := n.Load(); now < before+500 {
				return fmt.Errorf("%d connections", now-before)
			}
			return nil
		})
	}
	many(&refused)
	r.IP("link", "set", device, "up")
	r.IP("address", "replace", fmt.Sprintf("fd00:%d::1/64", r.net), "dev", device, "nodad") // it goes with the link
	many(&refused)
	if n := through.Load(); n > 0 {
		t.Errorf("%d connections to an Envoy that is not there", n)
	}
	if n := wire(); n != 0 {
		t.Errorf("%d packets on the wire before Envoy", n)
	}
	r.peer.Want(otherUser, r.at(1, 8080), "refused")
	r.Serve("out", 15001, true)
	r.Serve("in", 15006, true)
	many(&through)
	if n := wire(); n != 0 {
		t.Errorf("%d packets on the wire with Envoy", n)
	}
	r.peer.Want(otherUser, r.at(1, 8080), "in "+r.at(1, 8080))
	end()
	group.Wait()
	// The same counter sees what is not captured.
	before := wire()
	r.Want(otherUser, r.at(2, 80), "peer")
	r.Want(otherUser, fmt.Sprintf("[fd00:%d::2]:80", r.net), "peer")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := wire() - before; n < 10 {
			return fmt.Errorf("%d packets were counted of two connections", n)
		}
		return nil
	})
	t.Logf("%d refused, %d through Envoy", refused.Load(), through.Load())
	if st, err := r.kernel.State(); err != nil || !st.Capturing || st.Remaining != 0 {
		t.Errorf("%+v %v", st, err)
	}
}

// TestNobodyBypassesByAddress: Envoy's connections to its application come from 127.0.0.6 and ::6
// and are not captured. A program that binds these addresses is captured all the same.
func TestNobodyBypassesByAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.confirm(settings(nil))
	r.keep()
	for _, c := range []struct {
		uid            int
		from, to, want string
	}{
		{appUser, "127.0.0.6", "240.240.0.7:80", "out 240.240.0.7:80"},
		{appUser, "::6", "[2001:2::7]:80", "out [2001:2::7]:80"},
		{appUser, "127.0.0.6", r.at(1, 9999), "out " + r.at(1, 9999)},
		{appUser, "::6", fmt.Sprintf("[fd00:%d::1]:9999", r.net), fmt.Sprintf("out [fd00:%d::1]:9999", r.net)},
		{proxyUser, "127.0.0.6", r.at(1, 8080), "app"},
		{proxyUser, "::6", fmt.Sprintf("[fd00:%d::1]:8080", r.net), "app"},
		{proxyUser, "", r.at(1, 8080), "in " + r.at(1, 8080)},
		{proxyUser, "", fmt.Sprintf("[fd00:%d::1]:8080", r.net), fmt.Sprintf("in [fd00:%d::1]:8080", r.net)},
	} {
		if got := r.GetFrom(c.uid, c.from, c.to); got != c.want {
			t.Errorf("user %d from %q to %s: %q, want %q", c.uid, c.from, c.to, got, c.want)
		}
	}
}
