package main

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/registry/analysis"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

func newAnalyze() *cobra.Command {
	var output, meshConfig, networksFile, stateDir string
	var ofBound bool
	var catalog catalogFlags
	var bound boundFlags
	cmd := &cobra.Command{
		Use:   "analyze PATH… [--consul-address ADDRESS]",
		Short: "Check each object, and then the mesh as a whole",
		Long: `Checks each object as "fairlead validate" does, and reports fields and kinds that are not in force in
this release. Then it checks the mesh as a whole: references to hosts, subsets and ports that do not
exist, selectors without a match, and objects that contradict each other.

With --consul-address it reads the catalog of Consul once, with the same flags as the server, and checks
both together: hosts that both define, routes and subsets for registered services, instances that are
left out, and rules that the token lacks. PATH is then optional.

With --mesh-config it also checks the settings of the mesh. If a field keeps the whole file out, nothing else
is checked. With --mesh-networks it also checks the networks of the mesh, and which workloads cannot be
reached from other networks.

With --bound it shows instead what directories and keys that are bound to namespaces have, what their
objects ask for, and for each thing that is not given the flag that gives it, ready to copy. Give it the
server's flags. With --state-dir, before an upgrade, it lists what the upgrade would take, with the flags
that keep it.

Exit code 0: no errors, warnings allowed; 1: there are errors, or the upgrade would take something;
2: could not run.`,
		Example: "  fairlead analyze mesh/\n  fairlead analyze -o json --mesh-config mesh.yaml mesh/\n" +
			"  fairlead analyze --consul-address http://127.0.0.1:8500 mesh/\n" +
			"  fairlead analyze --bound --state-dir /var/lib/fairlead-server mesh teams/shop=shop --config-hosts 'teams/shop=*.shop.internal'",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flag("consul-address").Value.String() != "" {
				return nil
			}
			return wantArgs(0)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, faults, err := meshSettings(meshConfig)
			if err != nil && len(faults) > 0 { // nothing is known of a mesh without its settings
				if err := report(cmd.OutOrStdout(), output, findingsOf(faults), 0); err != nil {
					return err
				}
				return errInvalid
			}
			if err != nil {
				return err
			}
			networks, more, err := meshNetworks(networksFile)
			if err != nil && len(more) == 0 {
				return err
			}
			faults = append(faults, more...)
			t, err := readSources(cmd.InOrStdin(), args, &bound, &catalog)
			if err != nil {
				return err
			}
			t.networks = networks
			if err := t.addConsul(cmd, &catalog); err != nil {
				return err
			}
			if ofBound || stateDir != "" {
				return t.analyzeBound(cmd.OutOrStdout(), output, settings, stateDir, bound.hostsOnly)
			}
			findings := append(analyzeTree(t, settings), findingsOf(faults)...)
			if err := report(cmd.OutOrStdout(), output, findings, len(t.objects())); err != nil {
				return err
			}
			if hasErrors(findings) {
				return errInvalid
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&meshConfig, "mesh-config", "", "file of Istio MeshConfig fields; empty means Istio's defaults")
	cmd.Flags().StringVar(&networksFile, "mesh-networks", "", meshNetworksHelp)
	cmd.Flags().BoolVar(&ofBound, "bound", false, "show what directories and keys that are bound to namespaces have, what their objects ask for, and the flags that give what they do not have")
	cmd.Flags().StringVar(&stateDir, "state-dir", "", "state directory of a server of the release before, with --bound: list what the upgrade to this release would take from directories and keys that are bound to namespaces, and the flags that keep it. Nothing in it is changed, and the server may run")
	bound.add(cmd.Flags())
	catalog.add(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

// analyzeTree is everything that is wrong with the manifests, and with what
// stands beside them, by position.
func analyzeTree(t *tree, settings *mesh.MeshConfig) []finding {
	findings := make([]finding, 0, len(t.Faults))
	for _, f := range t.Faults {
		findings = append(findings, findingOf(f))
	}
	for _, o := range t.objects() {
		for _, f := range o.NotInForce {
			findings = append(findings, findingOf(f))
		}
	}
	findings = append(findings, untranslatable(t.objects(), manifest.Error)...)
	in := analysis.Input{Objects: t.objects(), MeshConfig: settings, Foreign: t.foreign(settings), Bound: t.boundNamespaces()}
	if len(t.bound) > 0 {
		in.Gateways = t.snapshot(settings).Gateways
	}
	if t.Catalog != nil {
		findings = append(findings, t.Catalog.findings...)
		in.Catalogs, in.OtherSources = t.Catalog.fragments, t.Catalog.partial
	}
	for _, d := range analysis.Analyze(in) {
		findings = append(findings, findingOf(manifest.Fault{
			Origin: d.Origin, Key: d.Key, Field: d.Field, Code: manifest.Code(d.Code), Severity: manifest.Severity(d.Severity), Message: d.Message,
		}))
	}
	if !in.OtherSources {
		s := t.snapshot(settings)
		findings = append(findings, slices.Concat(cannotCall(s), heardLate(s), unreached(s, t.Catalog), idleIngressTLS(s), leftOutDelegates(s))...)
	}
	slices.SortStableFunc(findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Code, b.Code))
	})
	return findings
}

func hasErrors(findings []finding) bool {
	return slices.ContainsFunc(findings, func(f finding) bool { return f.Severity == string(manifest.Error) })
}
