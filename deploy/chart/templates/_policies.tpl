{{/*
Parts of the network policies: peers by component, and the calls that every component may make.
*/}}

{{/* baton.peer (list $ "prefill"): one peer of a rule */}}
{{- define "baton.peer" -}}
- podSelector:
    matchLabels: {{- include "baton.selector" . | nindent 6 }}
{{- end -}}

{{/* baton.resolve $: names are looked up at the cluster's DNS */}}
{{- define "baton.resolve" -}}
- to: {{- toYaml .Values.networkPolicy.dns | nindent 4 }}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end -}}

{{/* baton.pages $: the ports on which page bytes arrive */}}
{{- define "baton.pages" -}}
- {protocol: TCP, port: {{ .Values.ports.pagesFirst }}, endPort: {{ .Values.ports.pagesLast }}}
{{- end -}}

{{/* baton.collector $: spans go to the OpenTelemetry collector */}}
{{- define "baton.collector" -}}
{{- if .Values.otlpEndpoint -}}
- to: {{- toYaml .Values.networkPolicy.collector | nindent 4 }}
  ports:
    - {protocol: TCP, port: {{ regexReplaceAll "^.*:" .Values.otlpEndpoint "" | int }}}
{{- end -}}
{{- end -}}
