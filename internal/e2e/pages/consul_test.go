package pages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
)

const (
	consulPage = "docs/consul.md"
	// ofTwo is the catalog of the page: web, and api in two versions.
	ofTwo = `services = [
  {name = "web", address = "10.0.0.1", port = 8080},
  {name = "api", address = "10.0.0.2", port = 8080, tags = ["version=v1"]},
  {id = "api-2", name = "api", address = "10.0.0.3", port = 8080, tags = ["version=v2"]},
]
`
	// management is the token of whoever runs Consul.
	management = "5a1c7e0e-7f5b-4a43-9c53-2f0e8cf0f3a1"
)

// consul starts a Consul on the first host with settings, and waits for its catalog.
func (l *twoHosts) consul(name, settings, address, flags string) {
	l.t.Helper()
	one := l.hosts["10.0.0.1"]
	one.write(name+".hcl", settings)
	one.terminal(name, consultest.Binary(l.t)+" agent -dev -log-level error -config-file "+name+".hcl "+flags)
	envoytest.Eventually(l.t, envoytest.Patience, func() error {
		out, err := one.shell("curl -sS -H 'X-Consul-Token: " + management + "' http://" + address + ":8500/v1/catalog/services")
		if err == nil && !strings.Contains(out, `"api"`) {
			err = fmt.Errorf("the catalog has %s", out)
		}
		return err
	})
}

// prints waits until a command ends well and prints a text.
func (l *twoHosts) prints(command, want string) {
	l.t.Helper()
	envoytest.Eventually(l.t, envoytest.Patience, func() error {
		out, err := l.hosts["10.0.0.1"].shell(command)
		if err == nil && !strings.Contains(out, want) {
			err = errors.New("without " + want)
		}
		if err != nil {
			return fmt.Errorf("%s prints %s: %w", command, out, err)
		}
		return nil
	})
}

// TestConsulByHTTPSAsItStands follows docs/consul.md with a Consul that has a certificate of an authority of its own:
// a canary, a ServiceEntry that selects instances of the catalog, and the server.
func TestConsulByHTTPSAsItStands(t *testing.T) {
	l := newLab(t)
	binary := consultest.Binary(t)
	if out, err := l.hosts["10.0.0.1"].shell(binary + " tls ca create && " + binary + " tls cert create -server && cp consul-agent-ca.pem consul-ca.pem"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l.consul("consul", ofTwo+`ports { https = 8501 }
tls { https { cert_file = "dc1-server-consul-0.pem", key_file = "dc1-server-consul-0-key.pem" } }
`, "127.0.0.1", "-bind 127.0.0.1")
	l.follow(consulPage, "Run a canary")
	l.follow(consulPage, "Use files and Consul together")
	l.prints("fairlead analyze /etc/fairlead/mesh --consul-address 127.0.0.1:8500", "3 objects: 0 errors")
	l.follow(consulPage, "Use HTTPS")
	l.prints("curl -sS http://127.0.0.1:15014/readyz", "ready\n")
	l.prints("curl -sS http://127.0.0.1:15014/metrics", `source="consul"`)
}

// TestConsulTokenAsItStands follows docs/consul.md with a Consul that denies what no token allows: the tokens have
// the rules that the page gives, and no other.
func TestConsulTokenAsItStands(t *testing.T) {
	l := newLab(t)
	l.consul("consul", ofTwo+`acl { enabled = true, default_policy = "deny", tokens { initial_management = "`+management+`", agent = "`+management+`", config_file_service_registration = "`+management+`" } }
config_entries { bootstrap = [{kind = "service-intentions", name = "api", sources = [{name = "web", action = "allow"}]}] }
`, "127.0.0.1", "-bind 127.0.0.1")
	l.manifests()
	l.tokenOf("Move intentions")
	l.follow(consulPage, "Move intentions")
	check := "fairlead authz check --config-dir /etc/fairlead/mesh --consul-address 127.0.0.1:8500 --consul-token-file token --interception REDIRECT --workload default/api GET /orders --from cluster.local/ns/default/sa/"
	l.prints(check+"web", "allow")
	if out, err := l.hosts["10.0.0.1"].shell(check + "db"); err == nil || !strings.Contains(out, "den") {
		t.Errorf("another caller: %v, %s", err, out)
	}
	l.tokenOf("Give it an ACL token")
	l.prints("fairlead analyze /etc/fairlead/mesh --consul-address 127.0.0.1:8500 --consul-token-file token", " 0 errors")
}

// manifests makes the directory of manifests, as the first section says.
func (l *twoHosts) manifests() {
	l.t.Helper()
	if out, err := l.hosts["10.0.0.1"].shell("mkdir -p /etc/fairlead/mesh"); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
}

// tokenOf makes a token with the rules of a section, in the file token.
func (l *twoHosts) tokenOf(title string) {
	l.t.Helper()
	var rules strings.Builder
	for _, b := range section(l.t, consulPage, title) {
		if b.rule != "" {
			rules.WriteString(b.rule + "\n")
		}
	}
	name := strings.ReplaceAll(title, " ", "-")
	policy, err := json.Marshal(map[string]string{"Name": name, "Rules": rules.String()})
	if err != nil {
		l.t.Fatal(err)
	}
	one := l.hosts["10.0.0.1"]
	one.write("policy.json", string(policy))
	one.write("token.json", `{"Policies": [{"Name": "`+name+`"}]}`)
	put := "curl -sSf -X PUT -H 'X-Consul-Token: " + management + "' http://127.0.0.1:8500/v1/acl/"
	if out, err := one.shell(put + "policy --data @policy.json"); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	out, err := one.shell(put + "token --data @token.json")
	if err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	var made struct{ SecretID string }
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.SecretID == "" {
		l.t.Fatalf("the token is %s: %v", out, err)
	}
	one.write("token", made.SecretID)
}

// TestTwoDatacentersAsTheyStand follows docs/consul.md with two Consuls that are joined.
func TestTwoDatacentersAsTheyStand(t *testing.T) {
	l := newLab(t)
	l.consul("dc1", ofTwo, "127.0.0.1", "-datacenter dc1 -bind 127.0.0.1 -node one")
	l.consul("dc2", `services = [{name = "api", address = "10.0.0.9", port = 8080}]
`, "127.0.0.2", "-datacenter dc2 -bind 127.0.0.2 -client 127.0.0.2 -node two -retry-join-wan 127.0.0.1")
	l.prints("curl -sS http://127.0.0.1:8500/v1/catalog/datacenters", `"dc2"`)
	l.manifests()
	l.follow(consulPage, "Read several datacenters")
	l.prints("curl -sS http://127.0.0.1:15014/readyz", "ready\n")
	l.prints("curl -sS http://127.0.0.1:15014/metrics", `source="consul:dc2"`)
}
