package traffic

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/meshtest"
)

// TestRouteOfAGatewayToNothing: a gateway sends a tenth of the requests to a host that does not exist, without a port.
// These requests fail, at HTTP and HTTPS, and the status names the route after 30 s, not before. It is well again when
// the route is mended, and no request fails.
func TestRouteOfAGatewayToNothing(t *testing.T) {
	t.Parallel()
	e := newBusyEdge(t)
	e.EventuallyFound("")
	const was = "  - route: [{destination: {host: echo.shop.internal, port: {number: 9080}}}]\n"
	const tenth = "  - route: [{destination: {host: echo.shop.internal, port: {number: 9080}}, weight: 90}, {destination: {host: ecko.shop.internal}, weight: 10}]\n"
	start := func() []*meshtest.Load {
		loads := []*meshtest.Load{
			meshtest.NewClient(t, "good.test").StartLoad(t, "http://"+e.at(13, 8080)+"/", 50),
			e.keys.HTTPS("good.test").StartLoad(t, "https://"+e.at(13, 9443)+"/", 50),
		}
		for _, l := range loads {
			l.Wait(t, 50)
			if r := l.Now(); r.Failed > 0 {
				t.Fatalf("%d of %d failed, while all is well: %v", r.Failed, r.Good+r.Failed, r.Errors)
			}
		}
		return loads
	}
	loads := start()
	began := time.Now()
	e.Edit("gateway.yaml", was, tenth)
	e.EventuallyFound("no-destination: VirtualService shop/public", "gateway.yaml:", `sends requests to the host "ecko.shop.internal", which does not exist (did you mean "echo.shop.internal"?)`, "at 1 proxy)")
	took := time.Since(began)
	for _, l := range loads {
		r := l.Stop()
		t.Logf("%d of %d requests failed; named after %s", r.Failed, r.Good+r.Failed, took.Round(time.Second))
		if r.Failed == 0 || r.Failed > r.Good {
			t.Errorf("%d of %d requests failed, which are to be a tenth: %v", r.Failed, r.Good+r.Failed, r.Errors)
		}
	}
	if took < 30*time.Second {
		t.Errorf("named after %s", took)
	}

	e.Edit("gateway.yaml", tenth, was)
	e.EventuallyFound("")
	for _, l := range start() {
		if r := l.Stop(); r.Failed > 0 {
			t.Errorf("%d of %d failed after mending: %v", r.Failed, r.Good+r.Failed, r.Errors)
		} else {
			t.Logf("0 of %d failed after mending", r.Good)
		}
	}
}
