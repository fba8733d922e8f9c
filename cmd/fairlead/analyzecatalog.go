package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// catalogReading is what was read of Consul, once.
type catalogReading struct {
	fragments []*mesh.Fragment
	findings  []finding
	// partial says that the token may not read all of it.
	partial bool
	// datacenters are those that were read.
	datacenters []string
}

// maxConsulRead bounds how long it may take to read all that is named, once.
const maxConsulRead = 2 * time.Minute

// addConsul adds what flags name of Consul: manifests of the key-value store,
// which come after the files, and the catalogs. A Consul that cannot be read is an
// error: a mesh without it is another one.
func (t *tree) addConsul(cmd *cobra.Command, flags *catalogFlags) error {
	log := slog.New(slog.DiscardHandler) // what it would say is in the error, or in the findings
	c, err := flags.read(cmd, log)
	if err != nil || !c.Used() {
		return err
	}
	if err := c.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), maxConsulRead)
	defer cancel()
	if c.KVPrefix != "" {
		if err := t.addKeys(ctx, &c); err != nil {
			return fmt.Errorf("reading the key-value store at %s: %w", c.Client.Address, err)
		}
	}
	configs, err := c.Catalogs()
	if err != nil {
		return err
	}
	t.Catalog = &catalogReading{}
	for _, cfg := range configs {
		f, st, err := consul.Read(ctx, cfg)
		if err != nil {
			return fmt.Errorf("reading the catalog at %s: %w", c.Client.Address, err)
		}
		t.Catalog.add(f, st)
	}
	return nil
}

// addKeys adds the manifests of the key-value store.
func (t *tree) addKeys(ctx context.Context, c *server.Consul) error {
	cfg, err := c.KV()
	if err != nil {
		return err
	}
	store, err := kv.Open(cfg.Client, cfg.Prefix)
	if err != nil {
		return err
	}
	st, err := store.Read(ctx)
	if err != nil {
		return err
	}
	opts := manifest.Options{Source: cfg.Name, Namespaces: cfg.Namespaces, NoUnixSockets: !cfg.UnixSockets, NoFiles: !cfg.Files, NoLocalAddresses: !cfg.LocalAddresses}
	if len(cfg.Namespaces) == 1 {
		opts.Namespace = cfg.Namespaces[0]
	}
	binding, err := c.Binding()
	if err != nil {
		return err
	}
	if err := t.checkOverlap(binding); err != nil {
		return err
	}
	if binding != nil {
		t.bindings = append(t.bindings, binding)
	}
	for _, rel := range slices.Sorted(maps.Keys(st.Values)) {
		t.add(keyOptions(opts, st.Values[rel]), binding, kv.PathOf(store.Prefix()+"/"+rel), st.Values[rel].Content)
		t.place(keysRoot(store.Prefix()), rel)
	}
	t.limitSources()
	return nil
}

// codeMore means that there is more than is listed.
const codeMore = codes.More

// codeUnreadable means that the answer for a service is unusable.
const codeUnreadable = codes.Unreadable

// codeDenied means that the token lacks an ACL rule.
const codeDenied = codes.Denied

func (r *catalogReading) add(f *mesh.Fragment, st *consul.Status) {
	r.fragments = append(r.fragments, f)
	dc := st.Datacenter
	if dc == "" {
		dc = st.Source
	} else {
		r.datacenters = append(r.datacenters, dc)
	}
	for _, n := range st.Notes {
		path := "consul://" + dc + "/service/" + safetext.Sanitize(n.Service, 256)
		message := n.Message
		if n.Instance != "" {
			message = "instance " + n.Instance + ": " + message
		}
		r.findings = append(r.findings, finding{
			File: path, Code: string(n.Code), Severity: severityOf(n), Kind: string(mesh.KindServiceEntry),
			Name: safetext.Sanitize(n.Service, 256), Message: safetext.Sanitize(message, 1024),
		})
	}
	if more := st.NoteCount - len(st.Notes); more > 0 {
		r.findings = append(r.findings, finding{
			File: "consul://" + dc, Code: codeMore, Severity: string(manifest.Warning),
			Message: fmt.Sprintf("%d more things are left out or are not as they were meant; these are the first", more),
		})
	}
	for _, why := range st.Unreadable {
		r.partial = true
		r.findings = append(r.findings, finding{
			File: "consul://" + dc, Code: codeUnreadable, Severity: string(manifest.Warning),
			Message: "not in the mesh, as the answer of Consul cannot be used: " + safetext.Sanitize(why, 512),
		})
	}
	for _, rule := range st.Denied {
		r.partial = true
		r.findings = append(r.findings, finding{
			File: "consul://" + dc, Code: codeDenied, Severity: string(manifest.Warning),
			Message: fmt.Sprintf("the token lacks %s: what it would show is not in the mesh, and hosts of it seem to be unknown", safetext.Sanitize(rule, 256)),
		})
	}
}

func severityOf(n mapping.Note) string {
	if n.Severity == mapping.Warning {
		return string(manifest.Warning)
	}
	return string(n.Severity)
}
