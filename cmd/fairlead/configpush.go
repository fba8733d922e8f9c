package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

type pushFlags struct {
	configFlags
	meshConfig, meshNetworks string
	configDirs               []string
	bound                    boundFlags
	breakingFlag
	resultFlags

	dryRun, prune, allowEmpty, force, noCatalog bool
}

func newConfigPush() *cobra.Command {
	var f pushFlags
	cmd := &cobra.Command{
		Use:   "push DIR --consul-address ADDRESS --consul-kv-prefix PREFIX",
		Short: "Write the files of a directory to Consul's key-value store, if the mesh stays valid",
		Long: `Compares the files of DIR with the keys below PREFIX, and writes the keys that differ.

Before it writes, it checks the mesh as it would be after the push, with the catalog of Consul. If
there is an error, it reports the position and writes nothing. The same holds for a change, or a deletion, that
newly makes requests of a workload fail (see fairlead apply); --even-if-breaking writes it all the same.

Each key is written only if it has not changed since it was read (check-and-set). Up to 64 keys and
512 KiB are written in one transaction: all of them or none. A larger push takes several
transactions, in an order that keeps the mesh valid: services and workloads, then policies and
destination rules, then routes, then deletions.

A Gateway that is new gets a creationTimestamp in its key, if there are others and all of them have one,
and keeps it. The first one gets one only with --config-dir. What is written ends with the line "...": a part of it removes nothing.

A key without a file in DIR stays, unless --prune is set. If DIR was pulled before, a key that
somebody else has changed since then is not overwritten, unless --force is set; and a file that ended
with the line "...", and does not now, is refused: it may have lost its end.

If a server on this machine reads these keys (--run-dir), the command waits for the result: how many
proxies have applied the change, and what a proxy rejects, in Envoy's words.

The token needs key_prefix "PREFIX/" { policy = "write" }, and for the catalog service_prefix "" and
node_prefix "" { policy = "read" }.

Exit code 0: the keys equal the files; 1: the check failed, somebody else changed a key meanwhile, or a
proxy rejects the change; 2: could not run; 3: written, and the server did not say within --wait what became
of it. With --wait 0, or without such a server, nobody is asked.`,
		Example: "  fairlead config push mesh --consul-address 127.0.0.1:8500 --consul-kv-prefix fairlead/mesh --dry-run",
		Args:    wantArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return push(cmd, &f, args[0]) },
	}
	f.add(cmd, true)
	fl := cmd.Flags()
	fl.StringVar(&f.meshConfig, "mesh-config", "", "file of Istio MeshConfig fields; empty means Istio's defaults")
	fl.StringVar(&f.meshNetworks, "mesh-networks", "", meshNetworksHelp)
	fl.StringArrayVar(&f.configDirs, "config-dir", nil, "another directory of the same mesh, or DIR=NAMESPACE,…; it is only read, to check the whole mesh; may be repeated")
	fl.BoolVar(&f.noCatalog, "no-catalog", false, "check the mesh without the catalog of Consul; a host that nobody defines is then a warning, not an error")
	fl.StringVar(&f.runDir, "run-dir", defaultRunDir("server"), "the runtime directory of a server on this machine, which reports the result of the change")
	fl.DurationVar(&f.wait, "wait", 10*time.Second, "how long to wait until the proxies have applied the change; 0 means not at all")
	fl.BoolVar(&f.dryRun, "dry-run", false, "check, report what a push would do, and write nothing")
	f.bound.add(fl)
	f.addBreaking(fl)
	f.catalog.addKVHosts(fl)
	fl.BoolVar(&f.prune, "prune", false, "delete keys that have no file in DIR")
	fl.BoolVar(&f.allowEmpty, "allow-empty", false, "allow --prune to delete all keys below the prefix")
	fl.BoolVar(&f.force, "force", false, "overwrite keys that somebody else has changed since DIR was pulled")
	return cmd
}

func push(cmd *cobra.Command, f *pushFlags, dir string) error {
	t, err := f.open()
	if err != nil {
		return err
	}
	defer t.store.Close()
	local, err := readDir(dir)
	if err != nil {
		return err
	}
	if len(local) == 0 && !f.prune {
		return fmt.Errorf("%q has no *.yaml or *.yml in it: there is nothing to push", dir)
	}
	record, err := kv.LoadRecord(dir, t.store.Prefix())
	if err != nil {
		return err
	}
	st, err := t.store.Read(cmd.Context())
	if err != nil {
		return err
	}
	if len(local) == 0 && len(st.Values) > 0 && !f.allowEmpty {
		return refuse(cmd, "%q has no *.yaml or *.yml in it, and --prune would delete all that there is, %s: if that is meant, add --allow-empty",
			dir, count(len(st.Values), "key"))
	}
	p := pushed{dir: dir, local: local, authors: maps.Clone(local), st: st, record: record}
	if err := completeLocal(cmd, t, f, p); err != nil {
		return err
	}
	ok, err := checkPush(cmd, t, f, p)
	if err != nil {
		return err
	}
	if !ok {
		return refuse(cmd, "refused: nothing was written")
	}
	p.plan = t.store.Plan(st, kv.Goal{Values: local, Prune: f.prune, Rank: rank(t.opts)})
	if lost := p.plan.Overwritten(record); len(lost) > 0 && !f.force {
		for _, c := range lost {
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s: somebody else has changed it since %q was pulled\n", t.path(c.Rel), dir)
		}
		return refuse(cmd, "refused: nothing was written. See `fairlead config diff`; pull what is there, or overwrite it with --force")
	}
	return writePlan(cmd, t, f, p)
}

// refuse prints why nothing was done, and returns the error for that exit code.
func refuse(cmd *cobra.Command, format string, args ...any) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return errors.Join(errInvalid, err)
}

// pushed is the input of a push.
type pushed struct {
	dir string
	// local is what is to be in the keys, authors are the files that it was made of.
	local, authors map[string][]byte
	st             *kv.State
	plan           *kv.Plan
	record         *kv.Record // or nil
}

// checkPush checks the mesh as it would be. Faults of keys that stay as they are do not
// prevent the push.
func checkPush(cmd *cobra.Command, t *target, f *pushFlags, p pushed) (bool, error) {
	settings, _, err := meshSettings(f.meshConfig)
	if err != nil {
		return false, err
	}
	networks, _, err := meshNetworks(f.meshNetworks)
	if err != nil {
		return false, err
	}
	before, err := readTree(cmd.InOrStdin(), f.configDirs, &f.bound, f.catalog.hostPaths)
	if err != nil {
		return false, fmt.Errorf("--config-dir: %w", err)
	}
	before.networks = networks
	if f.noCatalog {
		before.Catalog = &catalogReading{partial: true}
	} else if err := before.addConsul(cmd, &f.catalog); err != nil {
		return false, fmt.Errorf("%w; --no-catalog checks the mesh without it", err)
	}
	for _, x := range before.Catalog.findings {
		if x.Code == codeDenied { // it explains why some faults are only warnings
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), x)
		}
	}
	hosts, err := f.catalog.patterns()
	if err != nil {
		return false, err
	}
	binding := files.Root{Namespaces: t.opts.Namespaces, Hosts: hosts, Credentials: f.catalog.hostPaths.credentials.keys(), RoutesOnly: f.catalog.hostPaths.routesOnly}.Binding()
	if err := before.checkOverlap(binding); err != nil {
		return false, err
	}
	after := before.clone()
	mine := map[string]string{}
	for _, rel := range kv.Rels(p.local, p.st.Values) {
		old, there := p.st.Values[rel]
		if there {
			before.add(keyOptions(t.opts, old), binding, t.path(rel), old.Content)
		}
		content, is := p.local[rel]
		switch {
		case is:
			name := filepath.Join(p.dir, filepath.FromSlash(rel))
			mine[name] = rel
			after.add(keyOptions(t.opts, old), binding, name, content)
		case there && !f.prune:
			after.add(keyOptions(t.opts, old), binding, t.path(rel), old.Content)
		}
	}
	return checkChange(cmd.OutOrStdout(), before, after, changeCheck{
		settings: settings, evenIfBreaking: f.evenIfBreaking, told: len(f.configDirs) > 0, tell: "--config-dir",
		mine: func(file string) bool { return mine[file] != "" },
		line: func(file string, line int) int {
			return manifest.AuthorLine(p.authors[mine[file]], p.local[mine[file]], line)
		},
	})
}

// completeLocal makes the files what is to be in the keys.
func completeLocal(cmd *cobra.Command, t *target, f *pushFlags, p pushed) error {
	others, err := readTree(cmd.InOrStdin(), f.configDirs, &f.bound, f.catalog.hostPaths)
	if err != nil {
		return fmt.Errorf("--config-dir: %w", err)
	}
	stored := map[string][]byte{}
	for rel, v := range p.st.Values {
		stored[rel] = v.Content
	}
	return wholeTexts{
		opts: t.opts, others: others, told: len(f.configDirs) > 0, stored: stored, label: func(rel string) string { return rel },
		lostEnd: p.record.LostEnd,
	}.complete(cmd.OutOrStdout(), p.local, wallclock.Now())
}

// keyOptions are the options for the text of a key, with its age. A key that is not there yet is younger than all
// others.
func keyOptions(opts manifest.Options, v kv.Value) manifest.Options {
	if opts.CreateIndex = v.CreateIndex; opts.CreateIndex == 0 {
		opts.CreateIndex = math.MaxUint64
	}
	return opts
}

// rank orders the keys of a push, so that objects are written before those that refer to them.
func rank(opts manifest.Options) func(rel string, content []byte) int {
	return func(rel string, content []byte) int {
		file, _ := manifest.Decode(opts, rel, content)
		top := 0
		for _, o := range file.Objects {
			switch o.Meta.Kind {
			case mesh.KindServiceEntry, mesh.KindWorkloadEntry, mesh.KindWorkloadGroup:
			case mesh.KindVirtualService, mesh.KindGateway:
				top = 2
			default:
				top = max(top, 1)
			}
		}
		return top
	}
}

// writePlan makes the changes of a plan, or prints them.
func writePlan(cmd *cobra.Command, t *target, f *pushFlags, p pushed) error {
	w := cmd.OutOrStdout()
	all := p.plan.Transactions()
	defer printLeft(w, t, p)
	for _, rel := range slices.Sorted(maps.Keys(p.local)) {
		if p.differs(t, rel) {
			_, _ = fmt.Fprintf(w, "%s stays as it is: it has a creationTimestamp that somebody else has written since %q was pulled, or a line \"...\" that the file has lost; see `fairlead config diff`\n", t.path(rel), p.dir)
		}
	}
	if len(all) == 0 {
		if p.record != nil && !f.dryRun {
			noteAll(t, p)
			if err := p.record.Save(p.dir); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintf(w, "the keys below %s are as the files: %s\n", t.store.Prefix()+"/", count(p.plan.Same, "key"))
		return err
	}
	if f.dryRun {
		for i, changes := range all {
			printChanges(w, t, changes, func(op kv.Op) string {
				return fmt.Sprintf("would %s, in transaction %d of %d", op, i+1, len(all))
			})
		}
		printObjectChanges(w, pushedObjects(t, p.plan.Changes))
		_, err := fmt.Fprintf(w, "it would be pushed: %s in %s; nothing was written\n", changedKeys(p.plan.Changes), count(len(all), "transaction"))
		return err
	}
	written, begin := 0, time.Now()
	for i, changes := range all {
		if err := t.store.Apply(cmd.Context(), changes); err != nil {
			return pushFailed(w, f, progress{i, len(all), written, len(p.plan.Changes)}, errors.Join(err, saveRecord(p)))
		}
		written += len(changes)
		printChanges(w, t, changes, func(op kv.Op) string {
			return map[kv.Op]string{kv.Create: "created", kv.Update: "updated", kv.Delete: "deleted"}[op]
		})
		for _, c := range changes {
			note(t, p, c.Rel, c.New)
		}
	}
	noteAll(t, p)
	printObjectChanges(w, pushedObjects(t, p.plan.Changes))
	if err := saveRecord(p); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "pushed %s in %s; %d were so already\n", count(written, "key"), count(len(all), "transaction"), p.plan.Same); err != nil {
		return err
	}
	return reportResult(cmd, f.resultFlags, pushedChange(t, p, begin))
}

// pushedObjects says what becomes of each object of the keys that change.
func pushedObjects(t *target, changes []kv.Change) []objectChange {
	was, is := map[mesh.Key]objectPlace{}, map[mesh.Key]objectPlace{}
	for _, c := range changes {
		for _, side := range []struct {
			in      map[mesh.Key]objectPlace
			content []byte
		}{{was, c.Old}, {is, c.New}} {
			file, _ := manifest.Decode(t.opts, c.Rel, side.content)
			for _, o := range file.Objects {
				side.in[o.Meta.Key] = objectPlace{o.Meta.Hash, t.path(c.Rel)}
			}
		}
	}
	return compareObjects(was, is)
}

// pushedChange is the change of a push, for asking the server for its result.
func pushedChange(t *target, p pushed, begin time.Time) change {
	root := kv.PathOf(t.store.Prefix())
	made := change{root: root, is: func(path string) bool { return path == root }, begin: begin}
	for _, c := range p.plan.Changes {
		if slices.ContainsFunc(pushedObjects(t, []kv.Change{c}), func(c objectChange) bool { return c.what != "unchanged" }) {
			made.places = append(made.places, changedPlace{t.path(c.Rel), t.path(c.Rel)})
		}
	}
	return made
}

// progress is how far a push has come.
type progress struct{ written, transactions, keysWritten, keys int }

// pushFailed reports what stopped a push, and what was written before.
func pushFailed(w io.Writer, f *pushFlags, p progress, err error) error {
	state := "nothing was written"
	if p.written > 0 {
		state = fmt.Sprintf("%d of %d transactions (%d of %d keys) were written before and are in force; the others were not",
			p.written, p.transactions, p.keysWritten, p.keys)
	}
	conflict, isConflict := errors.AsType[*kv.ConflictError](err)
	if !isConflict {
		if _, uncertain := errors.AsType[*kv.UncertainError](err); uncertain {
			return fmt.Errorf("%w; %s. See with `fairlead config diff`, and push again: what is there already is left alone", err, state)
		}
		return fmt.Errorf("%w; %s", err, state)
	}
	for _, k := range conflict.Keys {
		_, _ = fmt.Fprintf(w, "%s %s\n", kv.PathOf(k.Key), k.How)
	}
	next := "see `fairlead config diff`, and push again"
	if f.prune {
		next = "see `fairlead config diff` before you push and prune again"
	}
	_, werr := fmt.Fprintf(w, "refused: %s; %s\n", state, next)
	return errors.Join(errInvalid, werr)
}

// printChanges writes a line for each change, with the word for it.
func printChanges(w io.Writer, t *target, changes []kv.Change, word func(kv.Op) string) {
	for _, c := range changes {
		_, _ = fmt.Fprintf(w, "%s: %s%s\n", t.path(c.Rel), word(c.Op), lineCount(c))
	}
}

// changedKeys is the number of changes, and of deletions among them.
func changedKeys(changes []kv.Change) string {
	deleted := 0
	for _, c := range changes {
		if c.Op == kv.Delete {
			deleted++
		}
	}
	if deleted == 0 {
		return count(len(changes), "key")
	}
	return fmt.Sprintf("%s, %d of them deleted,", count(len(changes), "key"), deleted)
}

// lineCount says how much of an updated text differs.
func lineCount(c kv.Change) string {
	if c.Op != kv.Update {
		return ""
	}
	plus, minus := changedLines(c.Old, c.New)
	return fmt.Sprintf(" (+%d -%d lines)", plus, minus)
}

func printLeft(w io.Writer, t *target, p pushed) {
	for _, rel := range p.plan.Left {
		_, _ = fmt.Fprintf(w, "%s is not in %q and stays: --prune would delete it\n", t.path(rel), p.dir)
	}
}

// note records a value that is equal now, and the file that it was made of.
func note(t *target, p pushed, rel string, content []byte) {
	if p.record != nil {
		p.record.Note(t.opts, rel, content, p.authors[rel])
	}
}

// noteAll records all values that are equal now, but not those of [pushed.differs].
func noteAll(t *target, p pushed) {
	for rel, content := range p.local {
		if !p.differs(t, rel) {
			note(t, p, rel, content)
		}
	}
}

// differs reports whether a key stays as it is although its file does not have all of it: a date that somebody else
// wrote, or the line that ends the file.
func (p pushed) differs(t *target, rel string) bool {
	stored, author := p.st.Values[rel].Content, p.authors[rel]
	return bytes.Equal(p.local[rel], stored) && !bytes.Equal(p.record.Own(t.opts, rel, author, stored).Into(t.opts, author), stored)
}

func saveRecord(p pushed) error {
	if p.record == nil {
		return nil
	}
	return p.record.Save(p.dir)
}
