(** * Inference of the lists of recursive patterns

    [infer] fills in the three lists of every [μ].  The inputs are enlarged from none by the parameters
    that checks miss; the outputs, for those inputs, and the parameters left bound to small terms, are
    shrunk from all parameters until they are kept by the body.  If any lists pass the checks, these do
    ([BestLists.v], [BestSizes.v]); and the lists mean nothing to the machine ([Erasure.v]). *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Enumeration.

(** ** Fixpoints *)

(** The greatest list below [D] that [f] keeps, by at most [n] steps; none, if those do not do. *)
Fixpoint shrink (f : list name -> list name) (n : nat) (D : list name) : list name :=
  match n with
  | 0 => []
  | S n => if subset D (f D) then D else shrink f n (inter D (f D))
  end.

Lemma shrink_kept f n D : subset (shrink f n D) (f (shrink f n D)) = true.
Proof.
  revert D. induction n as [| n IH]; intros D; simpl; auto.
  destruct (subset D (f D)) eqn:E; auto.
Qed.

(** [D] enlarged by what [f] asks for. *)
Fixpoint enlarge (f : list name -> list name) (n : nat) (D : list name) : list name :=
  match n with
  | 0 => D
  | S n => if subset (f D) D then D else enlarge f n (f D ++ D)
  end.

Section Inference.
Context {Δ : Domain}.

(** ** What a pattern misses *)

(** The names that a check of [checks R D p] finds unbound, of those that [p] does not bind itself. *)
Fixpoint missing (R : recursion) (D : list name) (p : pattern) : list name :=
  let unbound D xs := filter (fun x => negb (mem x D)) xs in
  let all := fix all D ps :=
    match ps with
    | [] => []
    | p :: ps => missing R D p ++ all (bound_after R D p) ps
    end in
  match p with
  | PVar _ => []
  | POp _ ps => all D ps
  | PFun F ps => all (F :: D) ps
  | PAlt p q => missing R D p ++ missing R D q
  | PEx x p => without x (missing R (without x D) p)
  | PGuard p g => missing R D p ++ unbound (bound_after R D p) (guard_vars g)
  | PLet p _ e => missing R D p ++ unbound (bound_after R D p) (expr_vars e)
  | PMatch p p' x =>
      let D' := bound_after R D p in missing R D p ++ unbound D' [x] ++ missing R D' p'
  | PMu xs ins _ _ _ ys => unbound D (arguments xs ins ys)
  | PCall i ys =>
      match nth_error R i with
      | Some d => unbound D (arguments (d_params d) (d_in d) ys)
      | None => []
      end
  end.

(** ** The lists of one [μ]

    [inside] is the context of the body for some lists, and [body] the body with its own lists
    inferred in that context. *)

Section Lists.
Variables (inside : list name -> list name -> recursion) (body : list name -> list name -> pattern).
Variable xs : list name.

(** The greatest outputs for the inputs [ins]. *)
Definition greatest_outs (ins : list name) : list name :=
  shrink (fun outs => bound_after (inside ins outs) ins (body ins outs)) (1 + length xs) xs.

(** The inputs that the checks ask for. *)
Definition least_ins : list name :=
  let asked ins :=
    let outs := greatest_outs ins in inter xs (missing (inside ins outs) ins (body ins outs)) in
  enlarge asked (length xs) [].

Lemma greatest_outs_kept ins :
  let outs := greatest_outs ins in
  subset outs (bound_after (inside ins outs) ins (body ins outs)) = true.
Proof. apply (shrink_kept (fun outs => bound_after (inside ins outs) ins (body ins outs))). Qed.
End Lists.

Section Small.
Variables (inside : list name -> recursion) (body : list name -> pattern).
Variable xs : list name.

Definition greatest_small : list name :=
  shrink
    (fun small =>
       let G := sizes_after (inside small) Weak no_sizes (body small) in fst G ++ snd G)
    (1 + length xs) xs.

Lemma greatest_small_kept :
  small_ok (inside greatest_small) greatest_small (body greatest_small) = true.
Proof.
  apply (shrink_kept
    (fun small => let G := sizes_after (inside small) Weak no_sizes (body small) in fst G ++ snd G)).
Qed.
End Small.

(** ** The two passes *)

(** Inputs and outputs; those of the enclosing definitions are known. *)
Fixpoint infer_bindings (R : recursion) (p : pattern) : pattern :=
  match p with
  | PVar _ | PCall _ _ => p
  | POp f ps => POp f (map (infer_bindings R) ps)
  | PFun F ps => PFun F (map (infer_bindings R) ps)
  | PAlt p q => PAlt (infer_bindings R p) (infer_bindings R q)
  | PEx x p => PEx x (infer_bindings R p)
  | PGuard p g => PGuard (infer_bindings R p) g
  | PLet p x e => PLet (infer_bindings R p) x e
  | PMatch p p' x => PMatch (infer_bindings R p) (infer_bindings R p') x
  | PMu xs _ _ small b ys =>
      let inside ins outs := Def xs ins outs small b :: R in
      let body ins outs := infer_bindings (inside ins outs) b in
      let ins := least_ins inside body xs in
      let outs := greatest_outs inside body xs ins in
      PMu xs ins outs small (body ins outs) ys
  end.

(** The parameters left bound to small terms. *)
Fixpoint infer_small (R : recursion) (p : pattern) : pattern :=
  match p with
  | PVar _ | PCall _ _ => p
  | POp f ps => POp f (map (infer_small R) ps)
  | PFun F ps => PFun F (map (infer_small R) ps)
  | PAlt p q => PAlt (infer_small R p) (infer_small R q)
  | PEx x p => PEx x (infer_small R p)
  | PGuard p g => PGuard (infer_small R p) g
  | PLet p x e => PLet (infer_small R p) x e
  | PMatch p p' x => PMatch (infer_small R p) (infer_small R p') x
  | PMu xs ins outs _ b ys =>
      let inside small := Def xs ins outs small b :: R in
      let body small := infer_small (inside small) b in
      let small := greatest_small inside body xs in
      PMu xs ins outs small (body small) ys
  end.

Definition infer (p : pattern) : pattern := infer_small [] (infer_bindings [] p).

(** ** The analyses read only the lists of a context *)

Definition signature (d : definition) := (d_params d, d_out d, d_small d).
Definition similar (R R' : recursion) : Prop := map signature R = map signature R'.

Lemma similar_nth R R' i :
  similar R R' -> option_map signature (nth_error R i) = option_map signature (nth_error R' i).
Proof. intros H. rewrite <- !nth_error_map. now rewrite H. Qed.

Lemma similar_cons xs ins ins' outs small b b' R R' :
  similar R R' -> similar (Def xs ins outs small b :: R) (Def xs ins' outs small b' :: R').
Proof. unfold similar. simpl. now intros ->. Qed.

Lemma thread_ext {A} (f g : A -> pattern -> A) ps :
  Forall (fun p => forall a, f a p = g a p) ps -> forall a, thread f a ps = thread g a ps.
Proof. induction 1 as [| p ps Hp _ IH]; intros a; simpl; auto. now rewrite Hp. Qed.

Lemma bound_after_similar R R' p : similar R R' -> forall D, bound_after R D p = bound_after R' D p.
Proof.
  intros H. induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros D; simpl; auto using thread_ext.
  - now rewrite IHp, IHq.
  - now rewrite IH.
  - now rewrite IH.
  - now rewrite IHp, IHp'.
  - pose proof (similar_nth R R' i H) as E.
    destruct (nth_error R i), (nth_error R' i); try discriminate; auto.
    injection E as -> -> _. reflexivity.
Qed.

Lemma sizes_after_similar R R' p :
  similar R R' -> forall m G, sizes_after R m G p = sizes_after R' m G p.
Proof.
  intros H. induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros m G; simpl; auto.
  - apply thread_ext. eapply Forall_impl; [| exact IH]. auto.
  - apply thread_ext. eapply Forall_impl; [| exact IH]. auto.
  - now rewrite IHp, IHq.
  - now rewrite IH.
  - now rewrite IH.
  - now rewrite IHp, IHp'.
  - pose proof (similar_nth R R' i H) as E.
    destruct (nth_error R i), (nth_error R' i); try discriminate; auto.
    injection E as -> _ ->. reflexivity.
Qed.

(** The second pass changes nothing that the first one cares about. *)
Lemma thread_map {A} (f g : A -> pattern -> A) (h : pattern -> pattern) ps :
  Forall (fun p => forall a, f a (h p) = g a p) ps ->
  forall a, thread f a (map h ps) = thread g a ps.
Proof. induction 1 as [| p ps Hp _ IH]; intros a; simpl; auto. now rewrite Hp. Qed.

(** Contexts that differ in their lists [small] only. *)
Definition similar_bindings (R R' : recursion) : Prop :=
  map (fun d => (d_params d, d_out d)) R = map (fun d => (d_params d, d_out d)) R'.

Lemma bound_after_infer_small p : forall R R' R2 D,
  similar_bindings R R' -> bound_after R D (infer_small R2 p) = bound_after R' D p.
Proof.
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros R R' R2 D H; simpl; auto.
  - apply thread_map. eapply Forall_impl; [| exact IH]. auto.
  - apply thread_map. eapply Forall_impl; [| exact IH]. auto.
  - now rewrite (IHp R R'), (IHq R R').
  - now rewrite (IH R R').
  - now rewrite (IH R R').
  - now rewrite (IHp R R'), (IHp' R R').
  - assert (E : option_map (fun d => (d_params d, d_out d)) (nth_error R i) =
                option_map (fun d => (d_params d, d_out d)) (nth_error R' i)).
    { rewrite <- !nth_error_map. now rewrite H. }
    destruct (nth_error R i), (nth_error R' i); try discriminate; auto.
    injection E as -> ->. reflexivity.
Qed.
End Inference.
