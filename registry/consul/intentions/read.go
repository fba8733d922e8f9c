package intentions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// Kind is the kind of config entries that are read.
const Kind = api.ServiceIntentions

// State is what Consul says.
type State struct {
	// Entries are all that there are in the namespace.
	Entries []*api.ServiceIntentionsConfigEntry
	// Services are the names of those in the catalog, without proxies and gateways.
	Services []string
	// Outside are services that are reached through a terminating gateway; "*" is all.
	Outside []string
	// Default is what Consul does with what no intention is about. Empty means that it is not
	// known, which denies; MayAllow says that Consul may allow it.
	Default  api.IntentionAction
	MayAllow bool
	// Enterprise says that there are namespaces and partitions. Namespace and Partition are
	// those that were read; empty is "default".
	Enterprise           bool
	Namespace, Partition string
}

// home reports whether a namespace and partition are the ones that were read; empty ones are.
func (s *State) home(namespace, partition string) bool {
	same := func(name, home string) bool {
		if home == "" {
			home = "default"
		}
		return name == "" || name == home
	}
	return same(namespace, s.Namespace) && same(partition, s.Partition)
}

// Rule is the ACL rule that a token needs.
const Rule = `service_prefix "" { policy = "read", intentions = "read" } and node_prefix "" { policy = "read" }`

// ReadOptions say what is read.
type ReadOptions struct {
	// Datacenters are those with services; none means that of the agent.
	Datacenters []string
	// Default is that of [State].
	Default api.IntentionAction
}

// Read reads all intentions, and the names of the services. What a token may not see is an error:
// an intention that denies may be part of it.
func Read(ctx context.Context, cfg client.Config, o ReadOptions) (*State, error) {
	if len(o.Datacenters) > 0 {
		cfg.Datacenter = o.Datacenters[0]
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	s := &State{Namespace: cfg.Namespace, Partition: cfg.Partition, Enterprise: cfg.Namespace != "" || cfg.Partition != ""}
	if cfg.TokenFile == "" {
		if err := needsNoToken(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := s.readEntries(ctx, c); err != nil {
		return nil, err
	}
	if err := s.readOutside(ctx, c); err != nil {
		return nil, err
	}
	if s.Default = o.Default; s.Default == "" {
		if err := s.readDefault(ctx, c); err != nil {
			return nil, err
		}
	}
	return s, s.readServices(ctx, c, o.Datacenters)
}

// needsNoToken checks that there are no ACLs: without a token, Consul leaves entries out of its
// answers and does not say so.
func needsNoToken(ctx context.Context, c *client.Client) error {
	_, _, err := c.API().ACL().TokenReadSelf((&api.QueryOptions{}).WithContext(ctx))
	if status, ok := errors.AsType[api.StatusError](err); ok && status.Code == http.StatusUnauthorized { // "ACL support disabled"
		return nil
	}
	if status, ok := errors.AsType[api.StatusError](err); err == nil || ok && status.Code < http.StatusInternalServerError {
		return errors.New("Consul has ACLs, and without a token it hides intentions: name a token with --consul-token-file; it needs " + Rule)
	}
	return fmt.Errorf("asking Consul whether it has ACLs: %w", client.Classify(err))
}

// readAll reads an answer of which nothing may be missing.
func readAll[T any](ctx context.Context, c *client.Client, what string, read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) (T, error) {
	v, meta, err := client.GetLong(ctx, c, read)
	switch {
	case err != nil:
		return v, fmt.Errorf("reading %s: %w", what, err)
	case meta.Filtered:
		return v, fmt.Errorf("reading %s: the token may not see all of them; it needs %s", what, Rule)
	}
	return v, nil
}

// readKind reads all config entries of a kind, as JSON.
func readKind(ctx context.Context, c *client.Client, kind string) ([]json.RawMessage, error) {
	return readAll(ctx, c, "config entries of kind "+kind, func(c *api.Client, q *api.QueryOptions) ([]json.RawMessage, *api.QueryMeta, error) {
		var out []json.RawMessage
		meta, err := c.Raw().Query("/v1/config/"+kind, &out, q)
		return out, meta, err
	})
}

func (s *State) readEntries(ctx context.Context, c *client.Client) error {
	list, err := readKind(ctx, c, Kind)
	if err != nil {
		return err
	}
	s.Entries, err = Decode(list)
	for _, e := range s.Entries {
		s.Enterprise = s.Enterprise || e.Namespace != "" || e.Partition != ""
	}
	return err
}

// readOutside reads which services are reached through a terminating gateway.
func (s *State) readOutside(ctx context.Context, c *client.Client) error {
	gateways, err := readKind(ctx, c, api.TerminatingGateway)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, text := range gateways {
		var g api.TerminatingGatewayConfigEntry
		if err := json.Unmarshal(text, &g); err != nil {
			return fmt.Errorf("decoding a terminating-gateway: %w", err)
		}
		for _, linked := range g.Services {
			if s.home(linked.Namespace, g.Partition) {
				names[linked.Name] = true
			}
		}
	}
	defaults, err := readKind(ctx, c, api.ServiceDefaults)
	if err != nil {
		return err
	}
	for _, text := range defaults {
		var d struct {
			Name        string
			Destination *struct{}
		}
		if err := json.Unmarshal(text, &d); err != nil {
			return fmt.Errorf("decoding a service-defaults: %w", err)
		}
		if d.Destination != nil {
			names[d.Name] = true
		}
	}
	s.Outside = slices.Sorted(maps.Keys(names))
	return nil
}

// probe is a service of which no intention says anything, unless it is for all.
const probe = "fairlead-consul-intentions"

// readDefault asks Consul for the answer where no intention counts. The answer is not more than a
// hint: servers of Consul 1.20 do not take their default_intention_policy into account
// (agent/consul/intention_endpoint.go), and Envoys have that of their own Consul agents.
func (s *State) readDefault(ctx context.Context, c *client.Client) error {
	allowed, _, err := client.Get(ctx, c, func(c *api.Client, q *api.QueryOptions) (bool, *api.QueryMeta, error) {
		return c.Connect().IntentionCheck(&api.IntentionCheck{Source: probe, Destination: probe, SourceType: api.IntentionSourceConsul}, q)
	})
	if err != nil {
		return fmt.Errorf("asking for Consul's default: %w (or name it with --default-policy)", err)
	}
	s.MayAllow = allowed
	if s.anySource(func(e *api.ServiceIntentionsConfigEntry, src *api.SourceIntention) bool {
		return e.Name == wildcard && src.Name == wildcard
	}) {
		// That was its answer. The default is for requests that no permission is about.
		s.MayAllow = s.anySource(func(_ *api.ServiceIntentionsConfigEntry, src *api.SourceIntention) bool {
			return len(src.Permissions) > 0
		})
	}
	return nil
}

func (s *State) anySource(is func(*api.ServiceIntentionsConfigEntry, *api.SourceIntention) bool) bool {
	return slices.ContainsFunc(s.Entries, func(e *api.ServiceIntentionsConfigEntry) bool {
		return slices.ContainsFunc(e.Sources, func(src *api.SourceIntention) bool { return is(e, src) })
	})
}

func (s *State) readServices(ctx context.Context, c *client.Client, datacenters []string) error {
	if len(datacenters) == 0 {
		datacenters = []string{""}
	}
	names := map[string]bool{}
	for _, dc := range datacenters {
		services, err := readAll(ctx, c, "the names of services", func(c *api.Client, q *api.QueryOptions) (map[string][]string, *api.QueryMeta, error) {
			q.Filter = `ServiceKind == ""`
			if dc != "" {
				q.Datacenter = dc
			}
			return c.Catalog().Services(q)
		})
		if err != nil {
			return err
		}
		for name := range services {
			names[name] = true
		}
	}
	delete(names, "consul") // Consul's own servers
	s.Services = slices.Sorted(maps.Keys(names))
	return nil
}

// Decode decodes entries as Consul's API has them. A field that it does not know is an error.
func Decode(list []json.RawMessage) ([]*api.ServiceIntentionsConfigEntry, error) {
	var out []*api.ServiceIntentionsConfigEntry
	seen := map[[3]string]bool{}
	for _, text := range list {
		var one struct {
			api.ServiceIntentionsConfigEntry

			Hash uint64 // of the content; package api does not have it
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&one); err != nil {
			return nil, fmt.Errorf("decoding an entry of kind %s: %w", Kind, err)
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("decoding an entry of kind %s: it is followed by something", Kind)
		}
		if err := check(&one.ServiceIntentionsConfigEntry); err != nil {
			return nil, err
		}
		key := [3]string{one.Partition, one.Namespace, one.Name}
		if seen[key] {
			return nil, fmt.Errorf("there are two entries for %q: which one counts is not known", one.Name)
		}
		seen[key] = true
		out = append(out, &one.ServiceIntentionsConfigEntry)
	}
	return out, nil
}

func check(e *api.ServiceIntentionsConfigEntry) error {
	switch {
	case e.Kind != Kind:
		return fmt.Errorf("an entry has the kind %q, and not %q", e.Kind, Kind)
	case e.Name == "":
		return fmt.Errorf("an entry of kind %q has no name", Kind)
	}
	for i, s := range e.Sources {
		switch {
		case s == nil || s.Name == "":
			return fmt.Errorf("%s: source %d has no name", e.Name, i)
		case len(s.Permissions) == 0 && !known(s.Action):
			return fmt.Errorf("%s: source %q: the action %q is neither allow nor deny", e.Name, s.Name, s.Action)
		case len(s.Permissions) > 0 && s.Action != "":
			return fmt.Errorf("%s: source %q has an action and permissions", e.Name, s.Name)
		}
		for _, p := range s.Permissions {
			if p == nil || !known(p.Action) {
				return fmt.Errorf("%s: source %q: a permission is neither allow nor deny", e.Name, s.Name)
			}
		}
	}
	return nil
}

func known(a api.IntentionAction) bool {
	return a == api.IntentionActionAllow || a == api.IntentionActionDeny
}
