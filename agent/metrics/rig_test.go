package metrics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"  // in the configuration
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3" // in the configuration
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

const testToken = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

func testWorkload() Workload {
	return Workload{
		Name: "web-1", Namespace: "shop", App: "web", Version: "v2", CanonicalName: "web", CanonicalRevision: "v2",
		Cluster: "vms", Principal: "spiffe://cluster.local/ns/shop/sa/web",
	}
}

// rig is a collector, and the page with its metrics.
type rig struct {
	*Collector
	page     *Handler
	own      *prometheus.Registry
	socket   string
	process  Process
	open     func(ctx context.Context, path string) (io.ReadCloser, error)
	workload Workload
	app      *url.URL
	// listeners are those of the Envoy; without a number they are not known.
	listeners Listeners
}

// newRig makes a collector that runs until the test ends. Set open and process before it is
// used.
func newRig(tb testing.TB, change func(*rig, *Config)) *rig {
	tb.Helper()
	r := &rig{socket: filepath.Join(envoytest.ShortDir(tb), "als.sock"), workload: testWorkload(), own: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(tb.Output(), nil))
	guard, err := peercred.NewGuard(peercred.GuardConfig{Logger: log, Socket: r.socket, Header: bootstrap.TokenHeader, Token: testToken})
	if err != nil {
		tb.Fatal(err)
	}
	c := Config{
		Logger: log, Socket: r.socket, UID: uint32(os.Geteuid()), Guard: guard,
		Open:     func(ctx context.Context, path string) (io.ReadCloser, error) { return r.open(ctx, path) },
		Process:  func() Process { return r.process },
		Workload: func() Workload { return r.workload }, Listeners: func() Listeners { return r.listeners },
	}
	if change != nil {
		change(r, &c)
	}
	if r.Collector, err = New(c); err != nil {
		tb.Fatal(err)
	}
	r.page, err = NewHandler(HandlerConfig{Logger: log, Collector: func() *Collector { return r.Collector }, Own: r.own, App: func() *url.URL { return r.app }})
	if err != nil {
		tb.Fatal(err)
	}
	r.own.MustRegister(r.page)
	return r
}

// run runs the collector until the test ends.
func (r *rig) run(tb testing.TB) {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
}

// scrape is the page, and what Prometheus's parser makes of it.
func (r *rig) scrape(tb testing.TB) (map[string]*dto.MetricFamily, string) {
	tb.Helper()
	rec := httptest.NewRecorder()
	r.page.ServeHTTP(rec, httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/stats/prometheus", http.NoBody))
	if rec.Code != http.StatusOK {
		tb.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	return parsePage(tb, rec.Body.String()), rec.Body.String()
}

func parsePage(tb testing.TB, page string) map[string]*dto.MetricFamily {
	tb.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		tb.Fatalf("the page is not valid: %v\n%.4000s", err, page)
	}
	return families
}

// find are the series of a family that have all labels, written as "name=value".
func find(f *dto.MetricFamily, labels ...string) (out []*dto.Metric) {
	for _, m := range f.GetMetric() {
		have := map[string]bool{}
		for _, l := range m.GetLabel() {
			have[l.GetName()+"="+l.GetValue()] = true
		}
		all := true
		for _, l := range labels {
			all = all && have[l]
		}
		if all {
			out = append(out, m)
		}
	}
	return out
}

// total sums the counters, or the numbers of observations, of the series with these labels.
func total(f *dto.MetricFamily, labels ...string) (n uint64) {
	for _, m := range find(f, labels...) {
		n += uint64(m.GetCounter().GetValue()) + m.GetHistogram().GetSampleCount()
	}
	return n
}

// text are the labels of a series, one a line, sorted.
func text(m *dto.Metric) string {
	var b strings.Builder
	for _, l := range m.GetLabel() {
		fmt.Fprintf(&b, "%s=%s\n", l.GetName(), l.GetValue())
	}
	return b.String()
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	a := &authority{key: newKey(tb)}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	return a
}

// issue writes a certificate and its key to files of these names, and the root beside them.
func (a *authority) issue(tb testing.TB, dir, name, id string, subject pkix.Name) {
	tb.Helper()
	key := newKey(tb)
	uri, err := url.Parse(id)
	if err != nil {
		tb.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject, URIs: []*url.URL{uri},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	write := func(file, kind string, der []byte, err error) {
		if err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, &key.PublicKey, a.key)
	write(name+".crt", "CERTIFICATE", der, err)
	der, err = x509.MarshalECPrivateKey(key)
	write(name+".key", "EC PRIVATE KEY", der, err)
	der, err = x509.CreateCertificate(rand.Reader, a.cert, a.cert, &a.key.PublicKey, a.key)
	write("root.crt", "CERTIFICATE", der, err)
}

// startEnvoy runs an Envoy with the agent's bootstrap, and static resources written as YAML.
func startEnvoy(tb testing.TB, version, alsSocket, resources string) *envoytest.Envoy {
	tb.Helper()
	dir := tb.TempDir()
	b, err := bootstrap.Build(bootstrap.Config{
		Node: bootstrap.Node{
			Type: bootstrap.TypeSidecar, Address: netip.MustParseAddr("10.0.0.7"), Name: "web-1", Namespace: "shop", Domain: "cluster.local",
			ServiceAccount: "web", WorkloadName: "web-1", Interception: "NONE",
		},
		XDSSocket: filepath.Join(dir, "x"), SDSSocket: filepath.Join(dir, "s"), ALSSocket: alsSocket, Token: testToken,
		AdminAddress: netip.MustParseAddrPort("127.0.0.1:1"), EnvoyVersion: bootstrap.Version{Major: 1, Minor: uint32(envoytest.Minor(tb, version))},
	})
	if err != nil {
		tb.Fatal(err)
	}
	b.DynamicResources = nil
	b.GetAdmin().GetAddress().GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{}
	proto.Merge(b.GetStaticResources(), staticResources(tb, resources))
	j, err := protojson.Marshal(b)
	if err != nil {
		tb.Fatal(err)
	}
	return envoytest.Start(tb, envoytest.Config{Bootstrap: j, Version: version})
}

// staticResources reads resources that are written as YAML.
func staticResources(tb testing.TB, text string) *bootstrapv3.Bootstrap_StaticResources {
	tb.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		tb.Fatal(err)
	}
	j, err := json.Marshal(tree)
	if err != nil {
		tb.Fatal(err)
	}
	out := &bootstrapv3.Bootstrap_StaticResources{}
	if err := protojson.Unmarshal(j, out); err != nil {
		tb.Fatal(err)
	}
	return out
}

// knows tells the collector the listeners of its Envoy, as a relay does.
func (r *rig) knows(tb testing.TB, resources string) {
	tb.Helper()
	var bodies [][]byte
	for _, l := range staticResources(tb, resources).GetListeners() {
		body, err := proto.Marshal(l)
		if err != nil {
			tb.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	r.listeners = Listeners{Number: r.listeners.Number + 1, Bodies: func() [][]byte { return bodies }}
}

// attach makes an Envoy that of the collector.
func (r *rig) attach(e *envoytest.Envoy) {
	r.process = Process{PID: e.PID(), Since: time.Now()}
	r.open = proxy.NewAdmin("tcp", e.AdminAddress()).Open
}
