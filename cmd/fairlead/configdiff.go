package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

func newConfigDiff() *cobra.Command {
	var f configFlags
	cmd := &cobra.Command{
		Use:   "diff DIR --consul-address ADDRESS --consul-kv-prefix PREFIX",
		Short: "Show what a push would change",
		Long: `Compares the keys with the files of DIR, key by key: "-" is the content of Consul, "+" that of DIR.
Before each difference it names the objects that differ. If only comments or layout differ, it names
none.

The token needs key_prefix "PREFIX/" { policy = "read" }.

Exit code 0: no difference; 1: there are differences; 2: could not run.`,
		Example: "  fairlead config diff mesh --consul-address 127.0.0.1:8500 --consul-kv-prefix fairlead/mesh",
		Args:    wantArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return diff(cmd, f, args[0]) },
	}
	f.add(cmd, false)
	return cmd
}

func diff(cmd *cobra.Command, f configFlags, dir string) error {
	t, err := f.open()
	if err != nil {
		return err
	}
	defer t.store.Close()
	local, err := readDir(dir)
	if err != nil {
		return err
	}
	st, err := t.store.Read(cmd.Context())
	if err != nil {
		return err
	}
	record, err := kv.LoadRecord(dir, t.store.Prefix())
	if err != nil {
		return err
	}
	differs := false
	for _, rel := range kv.Rels(local, st.Values) {
		content, here := local[rel]
		old, there := st.Values[rel]
		if here && there {
			if content = record.Own(t.opts, rel, content, old.Content).Into(t.opts, content); bytes.Equal(content, old.Content) {
				continue
			}
		}
		differs = true
		c := compared{
			rel: rel, key: t.path(rel), file: filepath.Join(dir, filepath.FromSlash(rel)),
			old: old.Content, now: content, here: here, there: there,
		}
		if err := c.show(cmd.OutOrStdout(), t.opts); err != nil {
			return err
		}
	}
	if differs {
		return errInvalid
	}
	return nil
}

// compared is one key and its file.
type compared struct {
	rel, key, file string
	old, now       []byte
	here, there    bool
}

func (c compared) show(w io.Writer, opts manifest.Options) error {
	from, to := c.key, c.file
	switch {
	case !c.there:
		from = "/dev/null"
	case !c.here:
		to = "/dev/null"
	}
	if _, err := fmt.Fprintf(w, "%s: %s\n", c.rel, objectsThatDiffer(opts, c)); err != nil {
		return err
	}
	return writeUnified(w, from, to, c.old, c.now)
}

const noneDiffers = "no object differs"

// objectsThatDiffer names the objects of two texts that are not the same.
func objectsThatDiffer(opts manifest.Options, c compared) string {
	hashes := func(content []byte) (map[mesh.Key]mesh.Hash, bool) {
		file, _ := manifest.Decode(opts, c.rel, content)
		out, good := map[mesh.Key]mesh.Hash{}, !file.Unparsable
		for _, o := range file.Objects {
			good = good && o.Valid
			out[o.Meta.Key] = o.Meta.Hash
		}
		return out, good
	}
	before, beforeGood := hashes(c.old)
	after, afterGood := hashes(c.now)
	var words []string
	for _, key := range slices.SortedFunc(maps.Keys(after), mesh.Key.Compare) {
		switch old, was := before[key]; {
		case !was:
			words = append(words, key.String()+" added")
		case old != after[key] || old.IsZero():
			words = append(words, key.String()+" changed")
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(before), mesh.Key.Compare) {
		if _, is := after[key]; !is {
			words = append(words, key.String()+" removed")
		}
	}
	switch {
	case !beforeGood && c.there:
		words = append(words, "what Consul has is not valid")
	case !afterGood && c.here:
		words = append(words, "the file is not valid")
	}
	if len(words) == 0 {
		return noneDiffers
	}
	return safetext.Sanitize(strings.Join(words, ", "), 4096)
}
