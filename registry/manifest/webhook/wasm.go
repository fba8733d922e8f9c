package webhook

import (
	"net/url"

	extensions "istio.io/api/extensions/v1alpha1"
	"istio.io/api/networking/v1beta1"
)

func proxyConfig(c cursor, _ Object, p *v1beta1.ProxyConfig) {
	c.policySelector("selector", p.Selector)
	c.notNegative("concurrency", p.Concurrency.GetValue())
}

func wasmPlugin(c cursor, _ Object, w *extensions.WasmPlugin) {
	c.target(w)
	c.wasm(wasmModule{w.Url, w.Sha256, w.ImagePullSecret, w.PluginName, w.VmConfig})
	for i, m := range w.Match {
		ports := make([]uint32, 0, len(m.GetPorts()))
		for _, p := range m.GetPorts() {
			ports = append(ports, p.GetNumber())
		}
		c.item("match", i).matchPorts(ports)
	}
}

const maxLua = 64 << 10

func trafficExtension(c cursor, _ Object, t *extensions.TrafficExtension) {
	c.target(t)
	w, lua := t.GetWasm(), t.GetLua()
	if (w == nil) == (lua == nil) {
		c.wrong("an extension is either wasm or lua; write one of them")
	}
	if lua != nil {
		at := c.at("lua").at("inlineCode")
		switch n := len(lua.InlineCode); {
		case n == 0:
			at.wrong("there is no code")
		case n > maxLua:
			at.wrong("the code has %d bytes, at most 64 KiB are allowed", n)
		}
	}
	if w != nil {
		c.at("wasm").wasm(wasmModule{w.Url, w.Sha256, w.ImagePullSecret, w.PluginName, w.VmConfig})
	}
	for i, m := range t.Match {
		ports := make([]uint32, 0, len(m.GetPorts()))
		for _, p := range m.GetPorts() {
			ports = append(ports, p.GetNumber())
		}
		c.item("match", i).matchPorts(ports)
	}
}

func (c cursor) matchPorts(ports []uint32) {
	for i, p := range ports {
		c.item("ports", i).at("number").because(whyNotPort(p))
	}
}

// wasmModule is what both kinds that load WebAssembly say about it.
type wasmModule struct {
	url, sha256, pullSecret, name string
	vm                            *extensions.VmConfig
}

const (
	sha256Len     = 64
	maxSecretName = 253
	maxPluginName = 256
)

func (c cursor) wasm(m wasmModule) {
	c.at("url").wasmURL(m.url)
	if m.sha256 != "" && !isSHA256(m.sha256) {
		c.at("sha256").wrong("%q is not a SHA-256 sum; write its 64 hexadecimal digits in lower case", m.sha256)
	}
	if len(m.pullSecret) > maxSecretName {
		c.at("imagePullSecret").wrong("the name has %d characters, at most %d are allowed", len(m.pullSecret), maxSecretName)
	}
	if len(m.name) > maxPluginName {
		c.at("pluginName").wrong("the name has %d characters, at most %d are allowed", len(m.name), maxPluginName)
	}
	seen := map[string]bool{}
	for i, e := range m.vm.GetEnv() {
		at := c.at("vmConfig").item("env", i)
		switch name := e.GetName(); {
		case e == nil:
			continue
		case name == "":
			at.at("name").wrong("the variable has no name")
		case len(name) > maxPluginName:
			at.at("name").wrong("the name has %d characters, at most %d are allowed", len(name), maxPluginName)
		case seen[name]:
			at.at("name").wrong("the variable %q is used twice; remove one of them", name)
		}
		seen[e.Name] = true
		if e.ValueFrom != extensions.EnvValueSource_INLINE && e.Value != "" {
			at.at("value").wrong("the value comes from %s, so none can be written; remove it, or valueFrom", e.ValueFrom)
		}
	}
}

func isSHA256(s string) bool {
	for i := range len(s) {
		if b := s[i]; (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	return len(s) == sha256Len
}

// wasmURL takes a URL, or the name of an image without a scheme.
func (c cursor) wasmURL(s string) {
	if s == "" {
		c.wrong("there is no module to load; write url, such as \"oci://registry.example.com/name:tag\"")
		return
	}
	u, err := url.ParseRequestURI(s)
	full := s
	if err != nil {
		full = "http://" + s
		u, err = url.ParseRequestURI(full)
	}
	if err == nil {
		_, err = url.Parse(full)
	}
	if err != nil {
		c.wrong("%q is not a URL; write one such as \"oci://registry.example.com/name:tag\"", s)
		return
	}
	switch u.Scheme {
	case "", "file", "http", "https", "oci":
	default:
		c.wrong("modules cannot be fetched by %q%s; use oci, https, http or file",
			u.Scheme, near(u.Scheme, "file", "http", "https", "oci"))
	}
}
