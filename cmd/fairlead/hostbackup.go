package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/pki/attest"
)

func newHostExport() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Export the records of hosts and their identities, for a backup",
		Long: `Writes the records of all hosts as JSON. With them and the authority's key, a server that has lost its
records recognizes every host again ("fairlead host import").

The export has no secret: it has only the hashes of keys. It also lists the hosts that were removed, so
that they stay removed.`,
		Example: "  fairlead host export --out hosts.json",
		Args:    noArgs,
	}
	ask := adminFlag(cmd)
	cmd.Flags().StringVar(&file, "out", "", "file to write, with mode 0600; empty means standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		var d attest.Document
		if err := ask().Do(cmd.Context(), http.MethodGet, "/v1/hosts/export", nil, &d); err != nil {
			return err
		}
		text, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return fmt.Errorf("encoding the hosts: %w", err)
		}
		for _, name := range d.Unreadable {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "fairlead: warning: the record of host %s is damaged and is not in the export\n", name)
		}
		if file == "" {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(text))
			return err
		}
		to, err := newSecretFile(file)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, to.close()) }()
		if err := to.write(string(text) + "\n"); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d hosts written to %s\n", len(d.Hosts), file)
		return err
	}
	return cmd
}

func newHostImport() *cobra.Command {
	var (
		in     server.ImportRequest
		output string
	)
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import exported records of hosts",
		Long: `Adds the hosts of an export from a server with the same authority. Existing records stay as they are, so
a second import changes nothing.

If a host of the file has a different record, or was removed since the export, nothing is imported.
With --overwrite, the file replaces such records.`,
		Example: "  fairlead host import hosts.json",
		Args:    wantArgs(1),
	}
	ask := adminFlag(cmd)
	cmd.Flags().BoolVar(&in.Overwrite, "overwrite", false, "replace existing records that differ from the file")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&in.Document); err != nil {
			return fmt.Errorf("reading %q: not what `fairlead host export` writes: %w", args[0], err)
		}
		var out attest.Imported
		if err := ask().Do(cmd.Context(), http.MethodPost, "/v1/hosts/import", in, &out); err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d hosts imported, %d replaced, %d were on record already\n", len(out.Added), len(out.Replaced), len(out.Same))
		return err
	}
	return cmd
}
