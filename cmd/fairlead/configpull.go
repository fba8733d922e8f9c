package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/registry/consul/kv"
)

type pullFlags struct {
	configFlags
	pull kv.Pull
}

func newConfigPull() *cobra.Command {
	var f pullFlags
	cmd := &cobra.Command{
		Use:   "pull DIR --consul-address ADDRESS --consul-kv-prefix PREFIX",
		Short: "Write the manifests of Consul's key-value store to the files of a directory",
		Long: `Writes each key below PREFIX to a file of DIR, by atomic rename, with mode 0644, and never outside of
DIR.

A file that was edited since the last pull, and whose key is different, is not overwritten unless
--force is set. A file whose key was deleted stays, unless --prune is set.

DIR/.fairlead-config.json records what was pulled. By it, pull and push distinguish your edits from
changes in Consul.

The token needs key_prefix "PREFIX/" { policy = "read" }.

Exit code 0: the files equal the keys; 1: some files could not be written; 2: could not run.`,
		Example: "  fairlead config pull mesh --consul-address 127.0.0.1:8500 --consul-kv-prefix fairlead/mesh",
		Args:    wantArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return pull(cmd, f, args[0]) },
	}
	f.add(cmd, false)
	fl := cmd.Flags()
	fl.BoolVar(&f.pull.DryRun, "dry-run", false, "report what a pull would do, and write nothing")
	fl.BoolVar(&f.pull.Prune, "prune", false, "delete files whose key was deleted")
	fl.BoolVar(&f.pull.Force, "force", false, "overwrite files that were edited since the last pull")
	return cmd
}

func pull(cmd *cobra.Command, f pullFlags, dir string) error {
	t, err := f.open()
	if err != nil {
		return err
	}
	defer t.store.Close()
	st, err := t.store.Read(cmd.Context())
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if len(st.Values) == 0 {
		record, err := kv.LoadRecord(dir, t.store.Prefix())
		if err != nil {
			return err
		}
		if record == nil { // nothing was ever pulled from there
			return refuse(cmd, "there is no *.yaml or *.yml below %s in Consul: see whether the prefix is the right one", t.store.Prefix()+"/")
		}
		_, _ = fmt.Fprintf(w, "there is no *.yaml or *.yml below %s in Consul\n", t.store.Prefix()+"/")
	}
	f.pull.Dir, f.pull.Options = dir, t.opts
	list, same, err := f.pull.Run(t.store, st)
	if err != nil {
		return fmt.Errorf("pulling into %q: %w", dir, err)
	}
	words := map[kv.Op]string{kv.Create: "created", kv.Update: "updated", kv.Delete: "deleted", kv.Keep: "its key is gone from Consul; it stays: --prune would delete it"}
	bad := 0
	for _, x := range list {
		name := filepath.Join(dir, filepath.FromSlash(x.Rel))
		if kv.CheckRel(x.Rel) != nil {
			name = t.path(x.Rel)
		}
		if pathErr, is := errors.AsType[*fs.PathError](x.Err); is {
			x.Err = pathErr.Err
		}
		switch {
		case x.Err != nil:
			bad++
			_, _ = fmt.Fprintf(w, "%s: left as it is: %v\n", name, x.Err)
		case f.pull.DryRun && x.Op != kv.Keep:
			_, _ = fmt.Fprintf(w, "%s: would %s\n", name, x.Op)
		default:
			_, _ = fmt.Fprintf(w, "%s: %s\n", name, words[x.Op])
		}
	}
	if _, err := fmt.Fprintf(w, "%s as in Consul already\n", count(same, "file")); err != nil {
		return err
	}
	if bad > 0 {
		return refuse(cmd, "%s could not be made what the keys are", count(bad, "file"))
	}
	return nil
}
