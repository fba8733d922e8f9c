package manifest_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestLostField: what a text that is cut off, or has null, lacks is found; an edit of a value loses nothing.
func TestLostField(t *testing.T) {
	t.Parallel()
	settings := "accessLogFile: /dev/stdout\nconnectTimeout: 3s\ndefaultConfig: {concurrency: 2, terminationDrainDuration: 4s}\nenableAutoMtls: false\n" +
		"outboundTrafficPolicy:\n  mode: REGISTRY_ONLY\ndefaultServiceExportTo: [a, b]\n"
	networks := "networks:\n  a: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n  b: {gateways: [{address: 192.0.2.1, port: 15443}]}\n"
	for name, c := range map[string]struct{ was, is, want string }{
		"same":                  {settings, settings, ""},
		"no_default_message":    {settings, settings + "trustDomain: other.example\n", ""},
		"nothing_of_defaults":   {"connectTimeout: 10s\n", "{}\n", ""},
		"edited":                {"connectTimeout: 3s\naccessLogFile: /dev/stdout\n", "connectTimeout: 4s\naccessLogFile: /dev/stderr\n", ""},
		"text":                  {"accessLogFile: /dev/stdout\nconnectTimeout: 3s\n", "connectTimeout: 3s\n", "accessLogFile"},
		"null":                  {"accessLogFile: /dev/stdout\n", "accessLogFile:\n", "accessLogFile"},
		"duration":              {"accessLogFile: /dev/stdout\nconnectTimeout: 3s\n", "accessLogFile: /dev/stdout\n", "connectTimeout"},
		"switch":                {"enableAutoMtls: false\n", "{}\n", "enableAutoMtls"},
		"enum_in_a_message":     {"outboundTrafficPolicy:\n  mode: REGISTRY_ONLY\n", "outboundTrafficPolicy:\n", "outboundTrafficPolicy"},
		"field_of_a_message":    {"defaultConfig: {concurrency: 2, terminationDrainDuration: 4s}\n", "defaultConfig: {concurrency: 2}\n", "defaultConfig.terminationDrainDuration"},
		"item_of_a_list":        {"defaultServiceExportTo: [a, b]\n", "defaultServiceExportTo: [a]\n", "defaultServiceExportTo"},
		"first_of_several":      {settings, "{}\n", ""},
		"network":               {networks, "networks:\n  a: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n", "networks.b"},
		"gateways_of_a_network": {networks, "networks:\n  a: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n  b:\n", "networks.b.gateways"},
		"same_networks":         {networks, networks, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := func(text string) proto.Message {
				if c.was == networks {
					n, _ := manifest.DecodeMeshNetworks("m.yaml", []byte(text))
					return n.Spec
				}
				s, _ := manifest.ReadMeshConfig("m.yaml", []byte(text))
				return s.Config.Spec
			}
			got := manifest.LostField(read(c.was), read(c.is))
			if got != c.want && (name != "first_of_several" || got == "") {
				t.Errorf("it is %q, want %q", got, c.want)
			}
			for range 5 {
				if again := manifest.LostField(read(c.was), read(c.is)); again != got {
					t.Errorf("again it is %q, was %q", again, got)
				}
			}
		})
	}
}
