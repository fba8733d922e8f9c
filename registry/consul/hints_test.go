package consul_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/client"
)

// Errors say what to do.
func TestReadErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	plain := consultest.Start(t, consultest.Options{})
	secured := consultest.Start(t, consultest.Options{TLS: true})
	strict := consultest.Start(t, consultest.Options{TLS: true, VerifyIncoming: true})
	for name, c := range map[string]struct {
		config client.Config
		want   string
	}{
		"https_to_a_plain_port": {
			client.Config{Address: "https://" + plain.HostPort(), CAFile: secured.Cluster().CAFile},
			"no TLS is spoken at this address: write http:// before it",
		},
		"http_to_a_port_of_tls": {client.Config{Address: secured.HostPort()}, "TLS is spoken at this address: write https:// before it"},
		"authority":             {client.Config{Address: secured.Address()}, "--consul-ca-file"},
		"name": {
			client.Config{Address: secured.Address(), CAFile: secured.Cluster().CAFile, ServerName: "consul.example"}, "--consul-tls-server-name",
		},
		"certificate":  {client.Config{Address: strict.Address(), CAFile: strict.Cluster().CAFile}, "--consul-cert-file"},
		"namespace":    {client.Config{Address: plain.Address(), Namespace: "shop"}, "Enterprise feature: leave out --consul-namespace"},
		"partition":    {client.Config{Address: plain.Address(), Partition: "shop"}, "Enterprise feature: leave out --consul-namespace and --consul-partition"},
		"a_datacenter": {client.Config{Address: plain.Address(), Datacenter: "nowhere"}, "No path to datacenter: is it unreachable, or is --consul-datacenter wrong?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, plain.Cluster(), "")
			cfg.Client, cfg.Logger = c.config, slog.New(slog.DiscardHandler)
			if _, _, err := consul.Read(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it does not say %q: %v", c.want, err)
			}
		})
	}
}

// Consul lets services be registered by names that it answers no query about.
func TestUnprintableNamesAreReported(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	for _, name := range []string{"web", "a\nb", "a\x00b", "\u200bweb", "\u202eweb"} {
		instance{node: "n1", id: name, service: name}.register(t, a.Client())
	}
	r := start(t, config(t, a.Cluster(), a.Address()))
	r.awaitStatus("read", func(st *consul.Status) bool { return live(st) && st.Instances == 2 && st.UnreadableCount == 4 })
	for _, fault := range r.source.Status().Unreadable {
		if !strings.Contains(fault, "register it under another name") || strings.ContainsAny(fault, "\n\x00\u200b\u202e") {
			t.Errorf("it is reported as %q", fault)
		}
	}
}
