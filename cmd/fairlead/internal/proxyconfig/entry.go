package proxyconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	inspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoymask"
)

// Entry is one resource of a proxy.
type Entry struct {
	Type     string   `json:"type"`
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	Accepted bool     `json:"accepted"`
	Rejected string   `json:"rejected,omitempty"`
	Origins  []string `json:"origins,omitempty"`
	// DestinationRules are those that a cluster was made from, as NAME.NAMESPACE.
	DestinationRules []string `json:"destination_rules,omitempty"`
	// Resource is the resource's JSON; null where nobody has a copy.
	Resource json.RawMessage `json:"resource"`
	// Health is what Envoy itself says of endpoints, by address and port.
	Health map[string]HostHealth `json:"health,omitempty"`
}

// empty tells whether there is no copy of the resource.
func (e *Entry) empty() bool { return len(e.Resource) == 0 || string(e.Resource) == "null" }

// Merge merges virtual hosts that travel by themselves into their route configurations. The
// virtual hosts stay in the list as they are.
func Merge(entries []Entry) ([]Entry, error) {
	hosts := map[string][]*Entry{}
	for i := range entries {
		if h := &entries[i]; h.Type == VirtualHost && !h.empty() {
			table, _, _ := strings.Cut(h.Name, separator)
			hosts[table] = append(hosts[table], h)
		}
	}
	out := slices.Clone(entries)
	for i := range out {
		if e := &out[i]; e.Type == Route && !e.empty() && len(hosts[e.Name]) > 0 {
			if err := e.add(hosts[e.Name]); err != nil {
				return nil, fmt.Errorf("merging the virtual hosts of %q: %w", e.Name, err)
			}
		}
	}
	return out, nil
}

// separator stands between the names of a route configuration and of a virtual host.
const separator = "/"

// add adds virtual hosts to a route configuration.
func (e *Entry) add(hosts []*Entry) error {
	var table map[string]json.RawMessage
	if err := json.Unmarshal(e.Resource, &table); err != nil {
		return err
	}
	const field = "virtual_hosts" // all that is merged is encoded by a server, which uses names of protos
	var list []json.RawMessage
	if raw, ok := table[field]; ok {
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
	}
	for _, h := range hosts {
		var host map[string]json.RawMessage
		if err := json.Unmarshal(h.Resource, &host); err != nil {
			return err
		}
		_, name, _ := strings.Cut(h.Name, separator)
		var err error
		if host["name"], err = json.Marshal(name); err != nil {
			return err
		}
		merged, err := json.Marshal(host)
		if err != nil {
			return err
		}
		list = append(list, merged)
		e.Accepted = e.Accepted && h.Accepted
		if e.Rejected == "" && h.Rejected != "" {
			e.Rejected = h.Name + ": " + h.Rejected
		}
	}
	var err error
	if table[field], err = json.Marshal(list); err != nil {
		return err
	}
	delete(table, "vhds")
	e.Resource, err = json.Marshal(table)
	return err
}

// decoded makes a function that describes a message into one that describes an entry.
func decoded[M proto.Message](rows func(*Entry, M) [][]string) func(*Entry) ([][]string, error) {
	return func(e *Entry) ([][]string, error) {
		m, ok := message(e.Type).(M)
		if !ok {
			return nil, fmt.Errorf("%q is no resource of type %q", e.Name, e.Type)
		}
		if e.empty() {
			return nil, nil
		}
		raw, err := envoymask.Without(e.Resource)
		if err != nil {
			return nil, err
		}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true, AllowPartial: true, Resolver: resolver{protoregistry.GlobalTypes}}).Unmarshal(raw, m); err != nil {
			return nil, fmt.Errorf("reading %s %q: %w", e.Type, e.Name, err)
		}
		return rows(e, m), nil
	}
}

// resolver finds a message for every type: an Envoy knows more extensions than this program.
// Nothing of an unknown one is in a table; JSON and YAML have it as it is.
type resolver struct{ *protoregistry.Types }

// FindMessageByURL implements the resolver of protojson.
func (r resolver) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	t, err := r.Types.FindMessageByURL(url)
	if errors.Is(err, protoregistry.NotFound) { // a message without fields, so that its content is discarded
		return (&inspector.HttpInspector{}).ProtoReflect().Type(), nil
	}
	return t, err
}

// Listeners are the listeners of a proxy that there is a copy of, and its extensions by name.
// Only extensions that this program knows have their content.
func Listeners(entries []Entry) ([]*listenerv3.Listener, map[string]*anypb.Any, error) {
	var listeners []*listenerv3.Listener
	extensions := map[string]*anypb.Any{}
	listener := decoded(func(_ *Entry, l *listenerv3.Listener) [][]string {
		listeners = append(listeners, l)
		return nil
	})
	extension := decoded(func(_ *Entry, x *corev3.TypedExtensionConfig) [][]string {
		extensions[x.GetName()] = x.GetTypedConfig()
		return nil
	})
	for i := range entries {
		var err error
		switch entries[i].Type {
		case Listener:
			_, err = listener(&entries[i])
		case Extension:
			_, err = extension(&entries[i])
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return listeners, extensions, nil
}
