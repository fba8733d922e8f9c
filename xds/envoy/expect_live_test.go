package envoy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestExpectContinueReachesTheApplication: whether a body is wanted is for the application
// to say, not for a proxy on the way. The application of this test answers without reading
// the body, so that nobody may say "100 Continue". The fixture's gRPC call is counted by its
// status.
func TestExpectContinueReachesTheApplication(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at(clientIP, f.http))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(envoytest.Attempt))
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: orders.shop.mesh\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"); err != nil {
			return err
		}
		status, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return err
		}
		if strings.Contains(status, " 100 ") {
			t.Fatalf("the first answer is %q: a proxy asked for the body", status)
		}
		if !strings.Contains(status, " 200 ") {
			return fmt.Errorf("the answer is %q", status)
		}
		return nil
	})
	if err := callGRPC(t.Context(), at(clientIP, f.grpc)); err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]*envoytest.Envoy{"client": f.client, "server": f.server} {
		if !strings.Contains(e.Admin(t, "/stats?usedonly&filter=grpc"), "grpc.success: 1") {
			t.Errorf("%s: the gRPC call is not counted:\n%s", name, e.Admin(t, "/stats?usedonly&filter=grpc"))
		}
	}
	f.client.NoRejections(t)
	f.server.NoRejections(t)
}
