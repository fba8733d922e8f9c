package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestNamesOfCredentials: a rule with a name that can be a folder of a host is in force, whatever
// settings have it; one that names a Secret of Kubernetes, or leads out of the directory, is kept out.
func TestNamesOfCredentials(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]string{
		"shop": "", "shop.example.com": "", "kubernetes://shop": "", "a-b_C.9": "",
		"shop/a": "namespace", "kubernetes://shop/a": "namespace", "../a": "namespace", "..": "no folder", ".a": "no folder", "a b": "no folder", "a\\b": "no folder",
		strings.Repeat("a", 254): "no folder", "sds://a": "not a folder", "builtin://": "not a folder", "kubernetes-gateway://shop/a": "not a folder", "configmap://default/a": "not a folder",
	} {
		for at, form := range map[string]string{
			"spec.trafficPolicy.tls":                                 "trafficPolicy: {tls: %s}",
			"spec.trafficPolicy.portLevelSettings[0].tls":            "trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: %s}]}",
			"spec.subsets[0].trafficPolicy.tls":                      "subsets: [{name: v1, trafficPolicy: {tls: %s}}]",
			"spec.subsets[0].trafficPolicy.portLevelSettings[0].tls": "subsets: [{name: v1, trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: %s}]}}]",
		} {
			settings := fmt.Sprintf("{mode: MUTUAL, credentialName: '%s'}", name)
			text := "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a}\nspec: {host: a.example, " + fmt.Sprintf(form, settings) + "}\n"
			file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(text))
			if len(file.Objects) != 1 {
				t.Fatalf("%q: %v", name, faults)
			}
			o := file.Objects[0]
			switch {
			case why == "" && !o.InForce():
				t.Errorf("%q: %v", name, o.NotInForce)
			case why != "" && (len(o.NotInForce) != 1 || !strings.Contains(o.NotInForce[0].String(), at+".credentialName: not in force") || !strings.Contains(o.NotInForce[0].String(), why)):
				t.Errorf("%q at %s: %v, want %s", name, at, o.NotInForce, why)
			}
		}
	}
}

// TestNamesOfCredentialsInGateways: the same holds for each field of a Gateway that names one.
func TestNamesOfCredentialsInGateways(t *testing.T) {
	t.Parallel()
	for field, form := range map[string]string{
		"credentialName": "credentialName: %s", "credentialNames[1]": "credentialNames: [a, %s]", "caCertCredentialName": "credentialName: a, caCertCredentialName: %s",
	} {
		for name, fits := range map[string]bool{"shop-cacert": true, "shop/a": false, "sds://a": false} {
			text := "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: a}\nspec: {servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example], tls: {mode: MUTUAL, " +
				fmt.Sprintf(form, "'"+name+"'") + "}}]}\n"
			file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(text))
			if len(file.Objects) != 1 {
				t.Fatalf("%s: %v", field, faults)
			}
			o := file.Objects[0]
			if o.InForce() != fits || !fits && !strings.Contains(o.NotInForce[0].String(), "spec.servers[0].tls."+field+": not in force") {
				t.Errorf("%s %q: %v", field, name, o.NotInForce)
			}
		}
	}
}
