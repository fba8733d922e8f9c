package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"gopkg.in/yaml.v3"
)

// MaxFile bounds the settings file, in bytes.
const MaxFile = 64 << 10

// Parse reads the settings of a host from YAML. name is the file's, for errors; user returns the
// number of a user by name. All faults are reported, each with file:line:column; [Build] checks
// what the values say together.
func Parse(name string, content []byte, user func(string) (uint32, error)) (*Settings, error) {
	if len(content) > MaxFile {
		return nil, fmt.Errorf("%s: %d bytes: settings of capture have at most %d", name, len(content), MaxFile)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if doc.Kind == 0 {
		return nil, fmt.Errorf("%s: it is empty: write at least workloads", name)
	}
	r := &reader{file: name, user: user}
	s := &Settings{
		Mode: Closed, Outbound: OutboundVIP, Inbound: InboundDeclared, Ranges: DefaultRanges(),
		ControlPlanePorts: []uint16{15010, 15012, 15014, 15017}, // Istio's, which are ours
	}
	r.object(doc.Content[0], map[string]func(*yaml.Node){
		"mode":                func(n *yaml.Node) { s.Mode = Mode(r.text(n)) },
		"outbound":            func(n *yaml.Node) { s.Outbound = Outbound(r.text(n)) },
		"inbound":             func(n *yaml.Node) { s.Inbound = Inbound(r.text(n)) },
		"virtual-ranges":      func(n *yaml.Node) { s.Ranges = each(r, n, (*reader).prefix) },
		"proxy-users":         func(n *yaml.Node) { s.Proxies = each(r, n, (*reader).uid) },
		"exclude-users":       func(n *yaml.Node) { s.ExcludeUsers = each(r, n, (*reader).uid) },
		"exclude-ports":       func(n *yaml.Node) { s.ExcludePorts = each(r, n, (*reader).port) },
		"control-plane-ports": func(n *yaml.Node) { s.ControlPlanePorts = each(r, n, (*reader).port) },
		"workloads":           func(n *yaml.Node) { s.Workloads = each(r, n, (*reader).workload) },
	})
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return s, nil
}

// reader turns YAML into values, and collects what is wrong with it.
type reader struct {
	file string
	user func(string) (uint32, error)
	errs []error
}

func (r *reader) fault(n *yaml.Node, format string, args ...any) {
	at := fmt.Sprintf("%s:%d:%d: ", r.file, n.Line, n.Column)
	r.errs = append(r.errs, errors.New(at+fmt.Sprintf(format, args...)))
}

// object hands the values of an object to the functions of its keys.
func (r *reader) object(n *yaml.Node, keys map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fault(n, "write keys and values here, such as workloads: […]")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		read, known := keys[k.Value]
		switch {
		case !known:
			r.fault(k, "there is no setting %q of capture", k.Value)
		case seen[k.Value]:
			r.fault(k, "%q is set twice", k.Value)
		default:
			read(v)
		}
		seen[k.Value] = true
	}
}

// each reads the values of a list.
func each[T any](r *reader, n *yaml.Node, read func(*reader, *yaml.Node) T) []T {
	if n.Kind != yaml.SequenceNode {
		r.fault(n, "write a list here, such as [a, b]")
		return nil
	}
	if len(n.Content) > maxListed {
		r.fault(n, "%d values: write at most %d", len(n.Content), maxListed)
		return nil
	}
	out := []T{}
	for _, c := range n.Content {
		out = append(out, read(r, c))
	}
	return out
}

func (r *reader) text(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		r.fault(n, "write one value here")
		return ""
	}
	return n.Value
}

func (r *reader) prefix(n *yaml.Node) netip.Prefix {
	p, err := netip.ParsePrefix(r.text(n))
	if err != nil {
		r.fault(n, "%q is not a range of addresses: write one such as 240.240.0.0/16", n.Value)
	}
	return p
}

func (r *reader) port(n *yaml.Node) uint16 {
	p, err := strconv.ParseUint(r.text(n), 10, 16)
	if err != nil || p == 0 {
		r.fault(n, "%q is not a port: write a number from 1 to %d", n.Value, highestPort)
	}
	return uint16(p)
}

// uid reads a user, by name or by number.
func (r *reader) uid(n *yaml.Node) uint32 {
	v := r.text(n)
	if id, err := strconv.ParseUint(v, 10, 32); err == nil {
		return uint32(id)
	}
	id, err := r.user(v)
	if err != nil {
		r.fault(n, "user %q: %v: create it first, or write its number", v, err)
	}
	return id
}

func (r *reader) workload(n *yaml.Node) Workload {
	w := Workload{OutboundPort: defaultOutboundPort, InboundPort: defaultInboundPort}
	r.object(n, map[string]func(*yaml.Node){
		"name":          func(n *yaml.Node) { w.Name = r.text(n) },
		"users":         func(n *yaml.Node) { w.Users = each(r, n, (*reader).uid) },
		"ports":         func(n *yaml.Node) { w.Ports = each(r, n, (*reader).port) },
		"outbound-port": func(n *yaml.Node) { w.OutboundPort = r.port(n) },
		"inbound-port":  func(n *yaml.Node) { w.InboundPort = r.port(n) },
		"proxy-user":    func(n *yaml.Node) { u := r.uid(n); w.ProxyUser = &u },
		"dns-port":      func(n *yaml.Node) { w.DNSPort = r.port(n) },
	})
	return w
}
