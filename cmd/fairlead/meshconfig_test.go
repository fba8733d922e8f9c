package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestMeshSettingsAreChecked: validate and analyze print the same lines. What this release
// ignores fails analyze; validate asks only whether Istio would accept the file.
func TestMeshSettingsAreChecked(t *testing.T) {
	t.Parallel()
	dir := shop(t)
	for _, c := range []struct {
		name, settings    string
		validate, analyze int
		lines             []string
	}{
		{"right", "connectTimeout: 3s\n", 0, 0, nil},
		{"no_effect", "defaultConfig: {discoveryAddress: \"istiod:15012\"}\n", 0, 0, []string{"1:35: warning [FL0131] MeshConfig defaultConfig.discoveryAddress: no effect here: "}},
		{"ignored", "inboundClusterStatName: a\n", 0, exitInvalid, []string{"1:25: error [FL0130] MeshConfig inboundClusterStatName: not in force: "}},
		{"restricts", "discoverySelectors: [{matchLabels: {mesh: in}}]\n", 0, exitInvalid, []string{"1:21: error [FL0130] MeshConfig discoverySelectors: not in force: "}},
		{"wrong", "connectTimeout: 5\ninboundClusterStatName: a\n", exitInvalid, exitInvalid, []string{
			"1:17: error [FL0115] MeshConfig connectTimeout: ", "2:25: error [FL0130] MeshConfig inboundClusterStatName: ",
		}},
		{"empty", "", exitInvalid, exitInvalid, []string{"1:1: error [FL0302] MeshConfig: the file is empty; "}}, // as the server says
		{"kept_out", "trustDomian: a\n", exitInvalid, exitInvalid, []string{"1:1: error [FL0110] MeshConfig trustDomian: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := write(t, c.settings)
			code, valid, errs := cli(t, "validate", "--mesh-config", path)
			if code != c.validate || errs != "" && code == 0 {
				t.Errorf("validate: %d %s%s", code, valid, errs)
			}
			if with, _, _ := cli(t, "validate", "--mesh-config", path, dir); with != code {
				t.Errorf("validate with manifests: %d, without %d", with, code)
			}
			code, analyzed, errs := cli(t, "analyze", "--mesh-config", path, dir)
			if code != c.analyze || errs != "" && code == 0 {
				t.Errorf("analyze: %d %s%s", code, analyzed, errs)
			}
			for _, line := range c.lines {
				if !strings.Contains(analyzed, path+":"+line) {
					t.Errorf("analyze does not say %q:\n%s", line, analyzed)
				}
				if says := strings.Replace(line, "error [FL0130]", "warning [FL0130]", 1); !strings.Contains(valid, path+":"+says) {
					t.Errorf("validate does not say %q:\n%s", says, valid)
				}
			}
			if got := strings.Count(analyzed, "MeshConfig"); got != len(c.lines) {
				t.Errorf("%d lines, want %d:\n%s", got, len(c.lines), analyzed)
			}
			code, out, _ := cli(t, "analyze", "-o", "json", "--mesh-config", path, dir)
			var list []finding
			if err := json.Unmarshal([]byte(out), &list); err != nil || code != c.analyze || len(list) != len(c.lines) {
				t.Errorf("analyze -o json: %d %v %s", code, err, out)
			}
		})
	}
	if code, _, errs := cli(t, "validate", "--mesh-config", "/nonexistent"); code != exitFailed || !strings.Contains(errs, "/nonexistent") {
		t.Errorf("a file that is not there: %d %s", code, errs)
	}
}

// TestMeshNetworksAreChecked holds that validate, analyze and render say of a file of networks what the
// server says when it starts.
func TestMeshNetworksAreChecked(t *testing.T) {
	t.Parallel()
	dir := write(t, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: web, namespace: shop}\nspec: {address: 10.0.0.1, serviceAccount: web}\n")
	for text, want := range map[string]string{
		"{}":                         "",
		" \n":                        `1:1: error [FL0302] MeshNetworks: the file is empty; write "{}" for no networks`,
		"meshNetworks: {a: {}}":      `1:15: error [FL0110] MeshNetworks meshNetworks: the networks are below this field`,
		"networks: {a: {x: 1}}":      `1:16: error [FL0110] MeshNetworks networks.a.x: there is no field "x" here`,
		"data: {meshNetworks: '{}'}": `1:22: error [FL0110] MeshNetworks data.meshNetworks: the networks are below this field`,
	} {
		path := write(t, text)
		for _, args := range [][]string{{"validate"}, {"analyze", dir}, {"render", "--workload", "shop/web", "--interception", "NONE", "--config-dir", dir}} {
			code, out, errs := cli(t, append(args, "--mesh-networks", path)...)
			if said := strings.Contains(out+errs, "] MeshNetworks"); said != (want != "") || !strings.Contains(out+errs, want) || (want == "") != (code == 0) {
				t.Errorf("%s of %q: %d %.400s%s; want %q", args[0], text, code, out, errs, want)
			}
		}
	}
}
