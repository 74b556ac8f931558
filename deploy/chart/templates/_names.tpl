{{/*
Names, labels and addresses. A component is gateway, edge, prefill or decode, or a tier of a further model, such as
small-decode; workers are named after their pod.
*/}}

{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* baton.component (list $ "prefill"): the name of a component's objects */}}
{{- define "baton.component" -}}
{{- printf "%s-%s" (include "baton.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* baton.selector (list $ "prefill"): labels that never change, for selectors */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* baton.labels (list $ "prefill"): all labels of an object */}}
{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/part-of: baton
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}

{{- define "baton.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The zone of this namespace's Services */}}
{{- define "baton.zone" -}}
{{- printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{/* Where workers register: a headless Service that also has gateways which are not ready yet. A gateway becomes ready
only when workers have registered, so a Service of ready pods would never have an address. */}}
{{- define "baton.registry" -}}
{{- printf "%s.%s:%v" (include "baton.component" (list . "registry")) (include "baton.zone" .) (include "baton.registryPort" .) -}}
{{- end -}}

{{/* baton.components $: what runs, as a YAML list */}}
{{- define "baton.components" -}}
{{- $components := prepend (include "baton.workers" . | fromYamlArray) "gateway" -}}
{{- if eq .Values.security.mode "sidecar" }}{{ $components = prepend $components "edge" }}{{ end -}}
{{- toYaml $components -}}
{{- end -}}

{{/* The port of a gateway on which workers register: its own, or its Envoy's, which takes all calls and knows their paths */}}
{{- define "baton.registryPort" -}}
{{- ternary .Values.ports.grpc .Values.ports.registry (eq .Values.security.mode "sidecar") -}}
{{- end -}}
