package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestCertificateWithTheName: an agent whose certificate does not have the name that the control
// plane gives its workload requests one that has, once for each name.
func TestCertificateWithTheName(t *testing.T) {
	t.Parallel()
	const life = 2 * time.Minute // renewals for a name are spread over three seconds
	cp := newPlane(t, life)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	who := bootstrap.Workload{Name: "orders-v1", Namespace: "shop", CanonicalName: "orders", CanonicalRevision: "v1", Cluster: "Kubernetes"}
	pc := &meshconfig.ProxyConfig{ProxyMetadata: map[string]string{}}
	who.SetMetadata(pc.GetProxyMetadata())
	cp.configure(protojson.Format(pc))
	name := profile.WorkloadName{Name: "orders-v1", Service: "orders", Revision: "v1"}
	cp.name.Store(&name)
	a := agentHere(t, newMachine(t, cp.token("orders-1", "shop/orders")).set.config(&bytes.Buffer{}))

	// The first certificate was requested before the control plane knew who asks. As usual the next
	// would be requested after half of the life, give or take a twentieth.
	envoytest.Eventually(t, life*2/5, func() error {
		if got := a.workload.Load().Workload(); got != name {
			return fmt.Errorf("the certificate has %+v", got)
		}
		return nil
	})
	if n := cp.named.Load(); n < 2 {
		t.Errorf("%d certificates were requested", n)
	}

	// Once for each name.
	now, later := time.Now(), time.Now().Add(time.Hour)
	i := &identities{a: a, log: slog.New(slog.DiscardHandler)}
	for _, step := range []struct {
		name, service string
		due           bool
	}{
		{"orders-v1", "orders", false}, // it has that
		{"orders-v2", "orders", true},
		{"orders-v2", "orders", false},
		{"orders-v2", "other", true},
		{"", "other", false}, // which no certificate can have
		{"orders-v2", "orders", true},
	} {
		next := who
		next.Name, next.CanonicalName = step.name, step.service
		a.config.Store(&hostConfig{workload: next})
		i.workloadDue = later
		i.renewForName(now)
		if due := i.workloadDue.Before(later); due != step.due {
			t.Errorf("%s of %s: a renewal is due: %v", step.name, step.service, due)
		}
	}
}
