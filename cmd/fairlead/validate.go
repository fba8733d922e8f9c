package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/manifest"
)

// finding is one entry of `-o json`.
type finding struct {
	File      string `json:"file"`
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	Code      string `json:"code"`
	Severity  string `json:"severity"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Field     string `json:"field,omitempty"`
	Message   string `json:"message"`
}

func findingOf(f manifest.Fault) finding {
	return finding{
		File: f.Origin.Path, Line: f.Origin.Line, Column: f.Origin.Column, Code: string(f.Code), Severity: string(f.Severity),
		Kind: string(f.Key.Kind), Namespace: f.Key.Namespace, Name: f.Key.Name, Field: f.Field, Message: f.Message,
	}
}

func findingsOf(faults []manifest.Fault) []finding {
	out := make([]finding, 0, len(faults))
	for _, f := range faults {
		out = append(out, findingOf(f))
	}
	return out
}

func newValidate() *cobra.Command {
	var output, meshConfig, networksFile string
	cmd := &cobra.Command{
		Use:   "validate PATH…",
		Short: "Check each object alone, as Istio's admission webhook does",
		Long: `Checks each object by itself, by the rules of Istio's webhook, Istio's CRD schemas, and Kubernetes'
metadata. PATH is a file, a directory, or - for standard input. Every fault is reported with its line,
column and field. With --mesh-config it also checks the settings of the mesh, and with --mesh-networks
its networks; PATH is then optional.

"fairlead analyze" also checks the mesh as a whole.

Exit code 0: valid, warnings allowed; 1: an object is invalid; 2: could not run.`,
		Example: "  fairlead validate mesh/\n  fairlead validate -o json orders.yaml\n  fairlead validate --mesh-config mesh.yaml mesh/",
		Args: func(cmd *cobra.Command, args []string) error {
			if meshConfig != "" || networksFile != "" {
				return nil
			}
			return wantArgs(0)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			_, settings, err := meshSettings(meshConfig)
			if err != nil && len(settings) == 0 {
				return err
			}
			for i, f := range settings {
				if f.Code == manifest.CodeNotInForce { // it is valid, and does something else than it says
					settings[i].Severity = manifest.Warning
				}
			}
			_, networks, err := meshNetworks(networksFile)
			if err != nil && len(networks) == 0 {
				return err
			}
			settings = append(settings, networks...)
			t, err := readTree(cmd.InOrStdin(), args, &boundFlags{}, hostPathFlags{})
			if err != nil {
				return err
			}
			findings := append(findingsOf(t.Faults), findingsOf(settings)...)
			for _, o := range t.objects() {
				if !o.Denies() {
					continue
				}
				for _, f := range o.NotInForce { // it is valid, and does something else than it says
					f.Severity = manifest.Warning
					findings = append(findings, findingOf(f))
				}
			}
			findings = append(findings, untranslatable(t.objects(), manifest.Warning)...) // it is valid
			if err := report(cmd.OutOrStdout(), output, findings, len(t.objects())); err != nil {
				return err
			}
			if manifest.HasErrors(t.Faults) || manifest.HasErrors(settings) {
				return errInvalid
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&meshConfig, "mesh-config", "", "file of Istio MeshConfig fields to check, too")
	cmd.Flags().StringVar(&networksFile, "mesh-networks", "", "file of Istio MeshNetworks to check, too")
	outputFlag(cmd, &output)
	return cmd
}

// report writes findings, and in text a last line that counts.
func report(w io.Writer, output string, findings []finding, objects int) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(findings)
	}
	count := map[string]int{}
	for _, f := range findings {
		count[f.Severity]++
		if _, err := fmt.Fprintln(w, f); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s: %s, %s\n", plural(objects, "object"), plural(count["error"], "error"), plural(count["warning"], "warning"))
	return err
}

// String is path:line:column: severity [code] Kind namespace/name field: message.
// What is not known is left out. It is fit for a terminal.
func (f finding) String() string {
	at := f.File
	if f.Line > 0 {
		at = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
	}
	s := fmt.Sprintf("%s: %s [%s]", at, f.Severity, f.Code)
	if f.Kind != "" {
		s += " " + f.Kind
	}
	switch {
	case f.Name == "":
	case f.Namespace == "":
		s += " " + f.Name
	default:
		s += " " + f.Namespace + "/" + f.Name
	}
	if f.Field != "" {
		s += " " + f.Field
	}
	return safetext.Sanitize(s+": "+f.Message, 8192)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if base, y := strings.CutSuffix(noun, "y"); y {
		noun = base + "ie"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
